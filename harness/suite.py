"""Runs many scenarios, some at a time, each against its control, and judges them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from harness.child import LauncherError
from harness.conductor import Conductor
from harness.contracts import Display, Parts, ScenarioResult
from harness.engine_servers import EngineServerError, EngineServers
from harness.faults import FAULTS
from harness.launcher import Launcher
from harness.observation import RunSeen
from harness.reporting.result_file import details_of, write_result
from harness.scenario import Scenario
from harness.stage import StageError
from harness.verdicts.judge import crashed, judge

JOURNAL = "journal.jsonl"
CONTROLS_DIR = "controls-runs"
SERVERS_DIR = "servers"


class Suite:
    """Scenarios to run with one launcher.

    Args:
        out_dir: each scenario gets a folder of its name in it, with its journal and logs.
        jobs: how many run at a time.
        display: told of each start and end.
        results: by name; grows as scenarios end, so that an interrupt loses none.
    """

    def __init__(
        self,
        launcher: Launcher,
        parts: Parts,
        *,
        out_dir: Path,
        jobs: int,
        display: Display,
        results: dict[str, ScenarioResult],
    ) -> None:
        self.results = results
        self._launcher = launcher
        self._parts = parts
        self._out_dir = out_dir
        self._slots = asyncio.Semaphore(jobs)
        # Real servers are large, and scenarios take turns with them.
        self._servers: dict[str, EngineServers] = {}
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._display = display
        self._controls: dict[str, asyncio.Task[RunSeen]] = {}

    async def run(self, scenarios: Sequence[Scenario]) -> None:
        """Run every scenario; those with real servers by topology, so that a server is reused.

        Raises:
            LauncherError: no more processes can be started.
        """
        for kind in sorted({scenario.engines.kind for scenario in scenarios}):
            if (make := self._parts.engines[kind].servers) is not None:
                self._servers[kind] = make(self._launcher, self._out_dir / SERVERS_DIR)
                self._turns[kind] = asyncio.Semaphore(1)
        try:
            async with asyncio.TaskGroup() as group:
                ordered = sorted(spread(scenarios), key=_topology)
                # Two that each take a core for themselves would starve the others.
                greedy = [scenario for scenario in ordered if _takes_a_core(scenario)]
                group.create_task(self._run_in_turn(greedy))
                for scenario in ordered:
                    if not _takes_a_core(scenario):
                        group.create_task(self._run_one(scenario))
        except ExceptionGroup as errors:
            lost = errors.subgroup(LauncherError)  # all scenarios lose the same launcher
            if lost is None:
                raise
            raise lost.exceptions[0] from None
        finally:
            # Shared by scenarios, so none of them cancels it with itself.
            for control in self._controls.values():
                control.cancel()
            await asyncio.gather(*self._controls.values(), return_exceptions=True)
            for servers in self._servers.values():
                await servers.close()

    async def _run_one(self, scenario: Scenario) -> None:
        turn = self._turns.get(scenario.engines.kind, contextlib.nullcontext())
        async with turn, self._slots:
            await self._run_now(scenario)

    async def _run_in_turn(self, scenarios: Sequence[Scenario]) -> None:
        """Run scenarios one after the other, in one slot."""
        async with self._slots:
            for scenario in scenarios:
                await self._run_now(scenario)

    async def _run_now(self, scenario: Scenario) -> None:
        self._display.started(scenario.name)
        out_dir = self._out_dir / scenario.name
        oracle = self._parts.oracle
        run: RunSeen | None = None
        try:
            control = await self._control(scenario)
            run = await self._conduct(scenario, out_dir, closing=True)
        except (StageError, EngineServerError) as error:
            result = crashed(scenario, str(error), journal=out_dir / JOURNAL)
        else:
            result = judge(scenario, run, control=control, oracle=oracle, journal=out_dir / JOURNAL)
        calm = f"{CONTROLS_DIR}/{scenario.control_key()}" if _has_control(scenario) else None
        write_result(result, details_of(scenario, run, control=calm, oracle=oracle))
        self.results[scenario.name] = result
        self._display.finished(result)

    async def _control(self, scenario: Scenario) -> RunSeen | None:
        """Return the run of the scenario's control; one run for all scenarios that share it."""
        if not _has_control(scenario):
            return None
        key = scenario.control_key()
        if key not in self._controls:
            calm = scenario.control()
            out_dir = self._out_dir / CONTROLS_DIR / key
            self._controls[key] = asyncio.create_task(
                self._conduct(calm, out_dir, closing=False, shown_as=scenario.name)
            )
        return await asyncio.shield(self._controls[key])

    async def _conduct(
        self, scenario: Scenario, out_dir: Path, *, closing: bool, shown_as: str | None = None
    ) -> RunSeen:
        name = shown_as or scenario.name
        prefix = "control run, " if shown_as else ""
        conductor = Conductor(
            self._launcher,
            self._parts,
            scenario,
            out_dir=out_dir,
            closing=closing,
            servers=self._servers.get(scenario.engines.kind),
            doing=lambda what: self._display.doing(name, prefix + what),
        )
        return await conductor.run()


def _has_control(scenario: Scenario) -> bool:
    """Whether anything is done to a scenario, so that the run without it says something."""
    return bool(scenario.faults or scenario.restarts or scenario.before_connect)


def _takes_a_core(scenario: Scenario) -> bool:
    """Whether it leaves a thread that never rests; those with real servers take turns anyway."""
    return scenario.engines.kind == "fake" and any(
        FAULTS[fault.kind].takes_a_core for fault in scenario.faults
    )


def spread(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Return scenarios with those that wait out a limit evenly among the others.

    Side by side they would leave the cores idle, and the others would then crowd them.
    """
    waits = [any(FAULTS[fault.kind].never_returns for fault in s.faults) for s in scenarios]
    places = []
    for chosen in (True, False):
        alike = [s for s, waiting in zip(scenarios, waits, strict=True) if waiting is chosen]
        places += [((number + 0.5) / len(alike), s) for number, s in enumerate(alike)]
    return [scenario for _, scenario in sorted(places, key=lambda place: place[0])]


def _topology(scenario: Scenario) -> tuple[str, int, int]:
    """Return what decides which servers a scenario needs; the order is otherwise the given one."""
    engines = scenario.engines
    return (engines.kind, engines.workers, engines.count) if engines.kind != "fake" else ("", 0, 0)
