"""Several scenarios at a time: shared controls, interrupts, and the launcher's death."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from real_runs import Quiet, RealRuns, make_scenario

from harness.child import LauncherError
from harness.contracts import ScenarioResult, Verdict
from harness.launcher import Launcher
from harness.scenario import Scenario
from harness.suite import CONTROLS_DIR, Suite, spread

pytestmark = pytest.mark.processes

REFUSED_START = {"kind": "reject", "at": "engine.start", "engine": 0}
REFUSED_PUBLISH = {"kind": "reject", "at": "engine.publish", "engine": 0, "nth": "always"}


class Interrupts(Quiet):
    """A display that interrupts the run when a scenario comes to a step."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.task: asyncio.Task[None] | None = None
        self._at = at

    def doing(self, name: str, what: str) -> None:
        super().doing(name, what)
        if self.done[-1] == self._at and self.task is not None:
            self.task.cancel()


def test_those_that_wait_are_spread() -> None:
    """Those with a fault that only a limit ends run among the others, each kind in its order."""
    refused = {"kind": "reject", "at": "engine.start", "engine": 0}
    frozen = {"kind": "freeze", "at": "rank.gather", "rank": 1}
    given = [
        make_scenario(name, fault)
        for fault, names in ((frozen, "AB"), (refused, "abcd"))
        for name in names
    ]
    assert [scenario.name for scenario in spread(given)] == ["a", "A", "b", "c", "B", "d"]
    assert spread([]) == []


def test_controls_are_shared(real_runs: RealRuns, tmp_path: Path) -> None:
    """Scenarios of one topology share one control run, and one without faults needs none."""
    display = Quiet()
    scenarios = [
        make_scenario("tests/calm"),
        make_scenario("tests/start", REFUSED_START, tolerates="one more attempt"),
        make_scenario("tests/publish", REFUSED_PUBLISH, expect="raised"),
    ]
    results = real_runs.run(scenarios, tmp_path, display=display)
    assert {name: result.verdict for name, result in results.items()} == dict.fromkeys(
        ("tests/calm", "tests/start", "tests/publish"), Verdict.PASS
    )
    assert len(list((tmp_path / CONTROLS_DIR).iterdir())) == 1
    assert sorted(display.told) == sorted(
        (what, scenario.name) for scenario in scenarios for what in ("started", "finished")
    )
    told = [line for line in display.done if "control run, push 1, connect" in line]
    assert len({line.partition(":")[0] for line in told}) == 1


def test_a_control_that_cannot_run(real_runs: RealRuns, tmp_path: Path) -> None:
    """Every scenario whose control cannot be run is invalid, and the others run."""
    scenarios = [
        make_scenario("tests/a", REFUSED_START, target="raises"),
        make_scenario("tests/b", REFUSED_PUBLISH, target="raises"),
        make_scenario("tests/good"),
    ]
    results = real_runs.run(scenarios, tmp_path)
    verdicts = [results[name].verdict for name in ("tests/a", "tests/b", "tests/good")]
    assert verdicts == [Verdict.INVALID, Verdict.INVALID, Verdict.PASS]
    assert results["tests/a"].sentence == results["tests/b"].sentence


@pytest.mark.parametrize(
    "at",
    ["tests/b: control run, push 1, connect", "tests/b: push 1, connect", "tests/b: closing push"],
    ids=["in-the-control", "in-the-run", "in-the-closing-push"],
)
def test_interrupted(real_runs: RealRuns, tmp_path: Path, at: str) -> None:
    """An interrupt ends every process, of controls too, and keeps the results that there are."""
    display = Interrupts(at)
    results: dict[str, ScenarioResult] = {}
    scenarios = [make_scenario("tests/a"), make_scenario("tests/b", REFUSED_START)]

    async def run() -> None:
        suite = Suite(
            real_runs.launcher,
            real_runs.parts,
            out_dir=tmp_path,
            jobs=1,
            display=display,
            results=results,
        )
        before = asyncio.all_tasks()  # the launcher's own too
        display.task = asyncio.create_task(suite.run(scenarios))
        with pytest.raises(asyncio.CancelledError):
            await display.task
        real_runs.check_nothing_is_left()
        assert asyncio.all_tasks() == before

    real_runs.do(run())
    assert list(results) == ["tests/a"]


def test_lost_launcher(real_runs: RealRuns, tmp_path: Path) -> None:
    """A launcher that died is one plain error, not a verdict on any scenario."""
    results: dict[str, ScenarioResult] = {}

    async def run(scenarios: list[Scenario]) -> None:
        async with Launcher(libraries=()) as launcher:
            suite = Suite(
                launcher,
                real_runs.parts,
                out_dir=tmp_path,
                jobs=2,
                display=Quiet(),
                results=results,
            )
            os.kill(launcher.zygote_pid, signal.SIGKILL)
            await suite.run(scenarios)

    with pytest.raises(LauncherError, match=r"^launcher: "):
        asyncio.run(run([make_scenario("tests/a"), make_scenario("tests/b")]))
    assert results == {}
