"""Runs known-bad modules against scenarios: until the first catch, or against all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.contracts import Display, Parts, ScenarioResult, Verdict
from harness.known_bad.table import Entry, against, target_of
from harness.launcher import Launcher
from harness.scenario import Scenario
from harness.suite import Suite

GOOD = "good-module"  # folder of the good module's runs
CONTROL = "control.succeeds"  # the check that a module works where nothing is done to it
CATCHES = frozenset({Verdict.FAIL, Verdict.HANG})


@dataclass
class Trial:
    """What became of one module.

    Attributes:
        results: of the scenarios that ran, in that order.
        seconds: wall-clock time of all of them.
        disputed: of those that caught it, the ones that the good module does not pass either.
    """

    module: str
    entry: Entry
    results: list[ScenarioResult] = field(default_factory=list)
    seconds: float = 0.0
    disputed: frozenset[str] = frozenset()

    @property
    def catches(self) -> list[ScenarioResult]:
        """The results that tell it from the good module."""
        return [
            result
            for result in self.results
            if result.verdict in CATCHES and result.name not in self.disputed
        ]

    @property
    def own_catches(self) -> list[ScenarioResult]:
        """The catches by what a scenario does; any would catch a module that fails without it."""
        if self.entry.everywhere:
            return []
        return [
            result
            for result in self.catches
            if all(check.ok for check in result.checks if check.name == CONTROL)
        ]

    @property
    def points_right(self) -> bool:
        """Whether what the first catch says names what is wrong."""
        return bool(self.catches) and self.entry.points_right(self.catches[0])


class RunScenarios(Protocol):
    """Runs scenarios, and returns their results by name."""

    async def __call__(
        self, scenarios: Sequence[Scenario], folder: str, *, jobs: int
    ) -> Mapping[str, ScenarioResult]: ...


class WithSuite:
    """`RunScenarios` by a `Suite` on a launcher that is used for every run.

    Args:
        out_dir: gets a folder for each module.
    """

    def __init__(self, launcher: Launcher, parts: Parts, out_dir: Path) -> None:
        self._launcher = launcher
        self._parts = parts
        self._out_dir = out_dir

    async def __call__(
        self, scenarios: Sequence[Scenario], folder: str, *, jobs: int
    ) -> Mapping[str, ScenarioResult]:
        results: dict[str, ScenarioResult] = {}
        suite = Suite(
            self._launcher,
            self._parts,
            out_dir=self._out_dir / folder,
            jobs=jobs,
            display=Silent(),
            results=results,
        )
        await suite.run(scenarios)
        return results


@dataclass(frozen=True)
class Setup:
    """What modules are tried against, and how.

    Attributes:
        entries: of the modules, by name.
        scenarios: by name.
        good_target: of the good module, which must pass where a catch counts.
        jobs: how many runs at a time.
    """

    entries: Mapping[str, Entry]
    scenarios: Mapping[str, Scenario]
    run: RunScenarios
    good_target: str
    jobs: int

    async def of_good(self, names: Iterable[str]) -> Mapping[str, ScenarioResult]:
        """Run scenarios with the good module; return their results by name."""
        return await self._all(names, self.good_target, GOOD)

    async def of(self, module: str, names: Iterable[str]) -> Mapping[str, ScenarioResult]:
        """Run scenarios with a module, several at a time; return their results by name."""
        return await self._all(names, target_of(module), module)

    async def one(self, module: str, name: str) -> ScenarioResult:
        """Run one scenario with a module."""
        scenario = against(self.scenarios[name], target_of(module))
        return (await self.run([scenario], module, jobs=1))[name]

    async def _all(
        self, names: Iterable[str], target: str, folder: str
    ) -> Mapping[str, ScenarioResult]:
        chosen = [against(self.scenarios[name], target) for name in names]
        return await self.run(chosen, folder, jobs=self.jobs) if chosen else {}


class Watcher(Protocol):
    """Is told of each module that was tried."""

    def __call__(self, trial: Trial) -> None: ...


async def until_caught(setup: Setup, tell: Watcher) -> list[Trial]:
    """Run each module until the first scenario that catches it, of those known to.

    A catch counts where the good module passes, which is run last, on the scenarios that caught.

    Args:
        tell: called as each module ends.
    """
    slots = asyncio.Semaphore(setup.jobs)

    async def try_one(trial: Trial) -> None:
        async with slots:
            begun_s = time.monotonic()
            for name in trial.entry.caught_by:
                trial.results.append(await setup.one(trial.module, name))
                if trial.results[-1].verdict in CATCHES:
                    break
            trial.seconds = time.monotonic() - begun_s
            tell(trial)

    trials = [Trial(module, entry) for module, entry in setup.entries.items()]
    async with asyncio.TaskGroup() as group:
        for trial in trials:
            group.create_task(try_one(trial))
    caught = dict.fromkeys(result.name for trial in trials for result in trial.catches)
    dispute(trials, await setup.of_good(caught))
    return trials


async def against_all(setup: Setup, tell: Watcher) -> list[Trial]:
    """Run the good module, and then each module, against every scenario.

    Args:
        tell: called as each module ends.
    """
    good = await setup.of_good(setup.scenarios)
    trials = []
    for module, entry in setup.entries.items():
        begun_s = time.monotonic()
        results = await setup.of(module, setup.scenarios)
        trial = Trial(module, entry, [results[name] for name in setup.scenarios if name in results])
        trial.seconds = time.monotonic() - begun_s
        dispute([trial], good)
        tell(trial)
        trials.append(trial)
    return trials


def dispute(trials: Iterable[Trial], good: Mapping[str, ScenarioResult]) -> None:
    """Discount the catches of scenarios that the good module does not pass."""
    failing = frozenset(name for name, r in good.items() if r.verdict is not Verdict.PASS)
    for trial in trials:
        trial.disputed = failing & {result.name for result in trial.results}


class Silent(Display):
    """A display of nothing: what is shown is a line a module."""

    def begin(self, total: int) -> None:
        """Show nothing."""

    def started(self, name: str) -> None:
        """Show nothing."""

    def doing(self, name: str, what: str) -> None:
        """Show nothing."""

    def finished(self, result: ScenarioResult) -> None:
        """Show nothing."""

    def end(self) -> None:
        """Show nothing."""
