"""The Buildkite pipelines are valid by the published schema, and never retry a verdict."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from harness.scenario_file import discover

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".buildkite"
VERDICTS = {10, 11, 12}


def gpu_pipeline() -> dict[str, Any]:
    """Return what the GPU suites upload."""
    command = [sys.executable, str(FOLDER / "gpu_suites.py")]
    printed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    pipeline: dict[str, Any] = json.loads(printed)
    return pipeline


def pipelines() -> list[dict[str, Any]]:
    """Return every pipeline."""
    return [yaml.safe_load((FOLDER / "pipeline.yml").read_text()), gpu_pipeline()]


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
    for pipeline in pipelines():
        for step in pipeline["steps"]:
            if "command" not in step:
                continue
            assert 0 < step["timeout_in_minutes"] <= 60, step["label"]
            rules = step.get("retry", {}).get("automatic", [])
            assert isinstance(rules, list), "true, or a bare rule, would retry any exit code"
            assert {rule["exit_status"] for rule in rules} <= {-1, 1}
            assert {rule["exit_status"] for rule in rules}.isdisjoint(VERDICTS)
            assert all(rule["limit"] == 1 for rule in rules)


def test_jobs_exist() -> None:
    """A job is a word that the script knows, or a nox session."""
    cases = set(re.findall(r"^(\w+)\)", (FOLDER / "job").read_text(), re.MULTILINE))
    sessions = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.M))
    for pipeline in pipelines():
        for step in pipeline["steps"]:
            words = step.get("command", "").split()
            if words[:1] == [".buildkite/job"]:
                assert words[1] in cases | sessions, step["label"]


def test_gpu_suites_name_scenarios() -> None:
    """Every entry of a suite names scenarios that exist."""
    command = "import gpu_suites, json; print(json.dumps(gpu_suites.SUITES))"
    printed = subprocess.run(
        [sys.executable, "-c", command], cwd=FOLDER, capture_output=True, check=True, text=True
    ).stdout
    for entries in json.loads(printed).values():
        for path, gpus, _, _ in entries:
            assert discover([ROOT / path])
            assert 1 <= gpus <= 8
