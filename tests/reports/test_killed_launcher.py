"""The launcher is killed at any moment: what is left still says what is known."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.cli import main
from reports import REPORTS

ROOT = Path(__file__).parents[2]
ARGUMENTS = ("run", "scenarios/session/clean.yaml", "scenarios/session/one_failure.yaml",
             "-k", "ipc", "--plain", "-j", "2")  # fmt: skip
MOMENTS = 4  # each takes a start of the launcher
START_LIMIT_S = 60.0

pytestmark = pytest.mark.processes


def kill_a_run(out_dir: Path, after_s: float) -> None:
    """Start a run, and kill its launcher so long after the first scenario began."""
    command = [sys.executable, "-m", "harness.cli", *ARGUMENTS, "--out", str(out_dir)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        limit = time.monotonic() + START_LIMIT_S
        while not list(out_dir.rglob("journal.jsonl")) and time.monotonic() < limit:
            time.sleep(0.01)
        time.sleep(after_s)
        process.send_signal(signal.SIGKILL)


@pytest.mark.timeout(300)
def test_random_moments(tmp_path: Path) -> None:
    """After each, every selected scenario is in every report: judged, unfinished or not run."""
    chance = random.Random(6)
    moments = [chance.uniform(0.0, 2.5) for _ in range(MOMENTS)]
    unfinished = 0
    for number, after_s in enumerate(moments):
        out_dir = tmp_path / str(number)
        kill_a_run(out_dir, after_s)
        assert main(["report", str(out_dir)]) == 0
        asked = [each["name"] for each in json.loads((out_dir / "run.json").read_text())["asked"]]
        found = json.loads((out_dir / "verdicts.json").read_text("ascii"))
        named = [each["name"] for each in (*found["scenarios"], *found["unfinished"])]
        assert sorted([*named, *found["not_run"]]) == sorted(asked)
        suite = ElementTree.parse(out_dir / "junit.xml").getroot()
        assert suite.get("errors") == str(len(found["unfinished"]))
        json.loads((out_dir / "trace.json").read_text("utf-8"))
        assert len(list(out_dir.glob("*.*"))) == len(REPORTS) + 1  # and run.json
        unfinished += len(found["unfinished"])
    assert unfinished
