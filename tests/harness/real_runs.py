"""Scenarios run for real: one launcher with the fakes for all tests of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from harness.contracts import ScenarioResult
from harness.launcher import Launcher
from harness.parts import default_parts
from harness.processes import children_of
from harness.scenario import FAULT_SPECS, Expectation, Scenario
from harness.suite import Suite

Result = TypeVar("Result")
BAD_TARGETS = "tests.harness.bad_targets"


class Quiet:
    """A display that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.done: list[str] = []

    def begin(self, total: int) -> None:
        self.told.append(("begin", str(total)))

    def started(self, name: str) -> None:
        self.told.append(("started", name))

    def doing(self, name: str, what: str) -> None:
        self.done.append(f"{name}: {what}")

    def finished(self, result: ScenarioResult) -> None:
        self.told.append(("finished", result.name))

    def end(self) -> None:
        self.told.append(("end", ""))


class RealRuns:
    """A launcher on a loop of its own, entered for a whole test session."""

    def __init__(self) -> None:
        self.parts = default_parts()
        self._runner = asyncio.Runner()
        self.launcher = Launcher([*self.parts.preload, BAD_TARGETS])
        self._runner.run(self.launcher.__aenter__())

    def run(
        self,
        scenarios: Sequence[Scenario],
        out_dir: Path,
        *,
        jobs: int = 2,
        display: Quiet | None = None,
    ) -> dict[str, ScenarioResult]:
        """Run and judge scenarios; return the results by name, and see that nothing is left."""
        results: dict[str, ScenarioResult] = {}
        suite = Suite(
            self.launcher,
            self.parts,
            out_dir=out_dir,
            jobs=jobs,
            display=display or Quiet(),
            results=results,
        )
        try:
            self.do(suite.run(scenarios))
        finally:
            self.check_nothing_is_left()
        return results

    def check_nothing_is_left(self) -> None:
        """See that no process and no shared memory of a scenario is left."""
        assert children_of(self.launcher.zygote_pid) == []
        assert list(self.launcher.scratch.path.glob("run-*")) == []

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the launcher's loop."""
        return self._runner.run(work)

    def run_one(self, scenario: Scenario, out_dir: Path) -> ScenarioResult:
        """Run and judge one scenario."""
        return self.run([scenario], out_dir)[scenario.name]

    def close(self) -> None:
        self._runner.run(self.launcher.__aexit__(None, None, None))
        self._runner.close()


def make_scenario(
    name: str = "tests/one",
    *faults: Mapping[str, Any],
    target: str | None = None,
    expect: str = "resumed",
    **fields: Any,
) -> Scenario:
    """Return a small scenario: two ranks, one engine, IPC.

    Args:
        target: a name of ``bad_targets``, or ``module:factory``.
        expect: the outcome.
    """
    if target is not None and ":" not in target:
        target = f"{BAD_TARGETS}:{target}"
    given = {
        "proves": "It holds.",
        "transport": "ipc",
        "pushes": 1,
        "trainer": {"ranks": 2, "tensor_parallel": 2},
        "target": target,
        "expect": (Expectation.model_validate({"outcome": expect}),),
        **fields,
    }
    scenario = Scenario.model_validate(given)
    specs = tuple(FAULT_SPECS[fault["kind"]].model_validate(fault) for fault in faults)
    return scenario.model_copy(update={"faults": specs}).named(name, Path(f"{name}.yaml"))
