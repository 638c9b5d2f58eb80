"""The Buildkite pipelines are valid by the published schema, and never retry a verdict."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from harness.cli import would_run
from harness.gpu_night import arguments_of, chosen, suites
from harness.gpus import gpus_wanted

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".buildkite"
VERDICTS = {10, 11, 12}


def gpu_pipeline() -> dict[str, Any]:
    """Return what the GPU suites upload."""
    command = [sys.executable, str(FOLDER / "gpu_suites.py")]
    printed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    pipeline: dict[str, Any] = json.loads(printed)
    return pipeline


def cpu_pipeline() -> dict[str, Any]:
    """Return what Buildkite reads from the repository."""
    pipeline: dict[str, Any] = yaml.safe_load((FOLDER / "pipeline.yml").read_text())
    return pipeline


def nightly() -> list[dict[str, Any]]:
    """Return the jobs that only a scheduled build has."""
    (group,) = [step for step in cpu_pipeline()["steps"] if "group" in step]
    assert group["if"] == 'build.source == "schedule"'
    steps: list[dict[str, Any]] = group["steps"]
    return steps


def jobs() -> list[dict[str, Any]]:
    """Return every step that runs a command, of every pipeline."""
    steps = [*cpu_pipeline()["steps"], *nightly(), *gpu_pipeline()["steps"]]
    return [step for step in steps if "command" in step]


def test_schema(tmp_path: Path) -> None:
    """Both are valid by the schema that Buildkite publishes, and a broken one is not."""
    good, broken = tmp_path / "gpu.json", tmp_path / "broken.json"
    good.write_text(json.dumps(gpu_pipeline()))
    broken.write_text(json.dumps({"steps": [{"label": "x", "parallelism": "three"}]}))
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.buildkite"]
    subprocess.run([*check, str(FOLDER / "pipeline.yml"), str(good)], check=True)
    refused = subprocess.run([*check, str(broken)], capture_output=True, check=False)
    assert refused.returncode == 1


def test_retries() -> None:
    """Only a lost agent and a crash of the harness are retried, and every job has a deadline."""
    for step in jobs():
        limit_minutes = 240 if step in nightly() else 60
        assert 0 < step["timeout_in_minutes"] <= limit_minutes, step["label"]
        rules = step.get("retry", {}).get("automatic", [])
        assert isinstance(rules, list), "true, or a bare rule, would retry any exit code"
        assert {rule["exit_status"] for rule in rules} <= {-1, 1}
        assert {rule["exit_status"] for rule in rules}.isdisjoint(VERDICTS)
        assert all(rule["limit"] == 1 for rule in rules)


def test_known_bad_modules() -> None:
    """Each build tries them; what takes hours, and its siblings, are left to scheduled builds."""
    every_build = {step["key"] for step in jobs() if step not in nightly()}
    assert "known_bad" in every_build
    only_nightly = {step["key"]: step["timeout_in_minutes"] for step in nightly()}
    assert only_nightly.keys() == {"known_bad_needed", "known_bad_full", "soak"}
    assert only_nightly["known_bad_full"] == 240


def test_jobs_exist() -> None:
    """A job is a word that the script knows, or a nox session."""
    cases = set(re.findall(r"^(\w+)\)", (FOLDER / "job").read_text(), re.MULTILINE))
    sessions = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.M))
    for step in jobs():
        words = step["command"].split()
        if words[:1] == [".buildkite/job"]:
            assert words[1] in cases | sessions, step["label"]


def test_gpu_suites_ask_for_what_they_need() -> None:
    """Every entry names scenarios that run on real engines, and as many GPUs as they can use."""
    for name, entry in chosen([], suites()):
        scenarios, _ = would_run(arguments_of(name, entry, num_gpus=8), num_gpus=8)
        assert entry[1] == max(map(gpus_wanted, scenarios)), name
