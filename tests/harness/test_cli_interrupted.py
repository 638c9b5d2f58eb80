"""A run that is interrupted, or killed: what had finished is told of, and nothing is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from harness.journal import read_journal
from harness.processes import ProcessIdentity, identify, leftovers
from harness.scratch import default_base

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
GOOD = (
    "proves: It holds.\ntransport: ipc\nexpect: {outcome: resumed}\ntrainer: {ranks: 2}\n"
    "tolerates: nothing is injected\n"
)
FILES = {
    "a_good.yaml": GOOD,
    "b_loops.yaml": GOOD + "target: tests.harness.bad_targets:Loops\n",
    "c_waits.yaml": GOOD,
}
START_LIMIT_S = 30.0
END_LIMIT_S = 30.0
KILLED_LIMIT_S = 3.0


@dataclass
class Started:
    """A run that is under way, and all that it has started so far."""

    launcher: subprocess.Popen[str]
    out_dir: Path
    processes: tuple[ProcessIdentity, ...] = ()
    ports: tuple[int, ...] = ()

    def look(self) -> None:
        """Note every process of the run, and every port that one of them listens on."""
        family = psutil.Process(self.launcher.pid).children(recursive=True)
        self.processes = tuple(p for each in family if (p := identify(each.pid)) is not None)
        self.ports = tuple(
            connection.laddr.port
            for each in family
            for connection in each.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        )

    def scratch(self) -> list[Path]:
        """Return the run's scratch directory, as long as it is there."""
        return list(default_base().glob(f"resync-chaos-{self.launcher.pid}-*"))

    def left(self) -> list[str]:
        """Return a sentence for everything that is left of the run."""
        gone = self.out_dir / "no such directory"
        return [*map(str, self.scratch()), *leftovers(gone, self.processes, self.ports)]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """Start a run of three scenarios, one at a time; the second never ends."""
    scenarios = tmp_path / "scenarios"
    scenarios.mkdir()
    for name, text in FILES.items():
        (scenarios / name).write_text(text)
    command = [sys.executable, "-m", "harness.cli", "run", str(scenarios), "-j", "1", "--plain"]
    environment = {**os.environ, "COLUMNS": "120"}
    with subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        try:
            yield Started(launcher, tmp_path / "out")
        finally:
            launcher.kill()


def _wait_until_it_loops(started: Started) -> None:
    """Wait until the first scenario has its verdict, and the second is in its push."""
    journal = started.out_dir / "b_loops/journal.jsonl"
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s:
        pushing = {
            event["who"]
            for event in read_journal(journal)
            if event["event"] == "command" and event["command"] == "push"
        }
        if len(pushing) == 2:
            break
        time.sleep(0.02)
    started.look()
    assert len(started.processes) == 4  # the zygote, two ranks and an engine
    assert len(started.ports) == 3  # the engine's, and a gloo listener of each rank


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(started: Started, number: signal.Signals) -> None:
    """What had finished is in every file and in the table; all else is torn down; exit 130."""
    _wait_until_it_loops(started)
    os.kill(started.launcher.pid, number)
    out, err = started.launcher.communicate(timeout=END_LIMIT_S)
    assert started.left() == []
    assert (started.launcher.returncode, err) == (130, "")
    assert re.search(r"^a_good +pass +resumed +1 ", out, re.MULTILINE)
    assert re.search(r"^1 pass, 0 fail, 0 hang, 0 invalid, 2 not run in ", out, re.MULTILINE)
    suite = ElementTree.parse(started.out_dir / "junit.xml").getroot()
    told = {case.get("name"): [each.tag for each in case] for case in suite.iter("testcase")}
    assert set(told) == {"a_good", "b_loops", "c_waits"}
    assert {"failure", "error", "skipped"}.isdisjoint(told["a_good"])
    assert "error" in told["b_loops"]  # it was running
    for name in ("a_good", "b_loops"):
        assert read_journal(started.out_dir / name / "journal.jsonl")
    assert not (started.out_dir / "c_waits").exists()


def test_interrupted_before_the_first_scenario(started: Started) -> None:
    """Ctrl-C twice while torch is still being imported ends as tidily, without a traceback."""
    deadline_s = time.monotonic() + START_LIMIT_S
    while not started.scratch() and time.monotonic() < deadline_s:
        time.sleep(0.005)
    started.look()
    for _ in range(2):
        os.kill(started.launcher.pid, signal.SIGINT)
        time.sleep(0.05)
    out, err = started.launcher.communicate(timeout=END_LIMIT_S)
    assert started.left() == []
    assert (started.launcher.returncode, err) == (130, "")
    assert out.startswith("0 pass, 0 fail, 0 hang, 0 invalid, 3 not run in ")


def test_killed(started: Started) -> None:
    """A launcher that is killed leaves no process, port or directory for long."""
    _wait_until_it_loops(started)
    started.launcher.kill()
    killed_s = time.monotonic()
    while started.left() and time.monotonic() < killed_s + KILLED_LIMIT_S:
        time.sleep(0.01)
    assert started.left() == []


def test_zygote_is_killed(started: Started) -> None:
    """When the machinery itself fails it is exit 1 and one message: no verdict on a scenario."""
    _wait_until_it_loops(started)
    zygote = psutil.Process(started.launcher.pid).children()[0]
    zygote.kill()
    _, err = started.launcher.communicate(timeout=END_LIMIT_S)
    left = [sentence for sentence in started.left() if not sentence.endswith("in state Z")]
    assert left == []  # an orphan that has ended is for the system to reap
    assert started.launcher.returncode == 1
    assert err.startswith("launcher: expected a living zygote, found: it ended with status -9. ")
    assert "Traceback" not in err
