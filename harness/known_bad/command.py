"""What ``resync-chaos known-bad`` does."""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from harness.contracts import Verdict
from harness.errors import LauncherError, UsageError
from harness.known_bad import needs, needs_report, report
from harness.known_bad.table import Entry, choose, load, require_known, target_of, usable
from harness.known_bad.trials import Setup, Trial, WithSuite, against_all, until_caught
from harness.launcher import Launcher
from harness.parts import default_parts
from harness.scenario import Scenario
from harness.scenario_file import SCENARIOS_ROOT, discover, load_file
from harness.target_check import check_targets
from harness.targets import DEFAULT

ROOT = Path(__file__).parents[2]
EXIT_INTERRUPTED = 130


def known_bad(options: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        UsageError: nothing is selected, or the table names a scenario that is not there.
        LauncherError: no more processes can be started.
    """
    entries = load()
    if options.page is not None:
        options.page.write_text(report.page(entries), encoding="utf-8")
        return 0
    _require_sense(options)
    scenarios = usable(load_scenarios(options.paths or [ROOT / SCENARIOS_ROOT]))
    if not scenarios:
        raise UsageError("expected scenarios without a target of their own, found none.")
    if not options.paths:
        require_known(entries, scenarios)
    chosen = choose(entries, options.pattern)
    options.out.mkdir(parents=True, exist_ok=True)
    how = _find_needs if options.needed else _try_modules
    try:
        return how(options, chosen, scenarios)
    except ExceptionGroup as errors:
        lost = errors.subgroup(LauncherError)  # all runs lose the same launcher
        if lost is None:
            raise
        raise lost.exceptions[0] from None


def _require_sense(options: argparse.Namespace) -> None:
    """Check what the parser cannot.

    Raises:
        UsageError: options do not go together.
    """
    if options.jobs < 1:
        raise UsageError(f"-j: expected at least 1, found {options.jobs}.")
    if options.paths and not (options.full or options.needed):
        raise UsageError(
            "PATH: expected none without --full or --needed, as catches.yaml names the scenarios, "
            f"found {options.paths[0]}."
        )
    if options.record and not options.needed:
        raise UsageError("--record: expected --needed beside it, found none.")
    if options.record and options.pattern is not None:
        raise UsageError(
            "--record: expected all modules, found -k, which could drop what another catches."
        )


def _try_modules(
    options: argparse.Namespace, entries: dict[str, Entry], scenarios: dict[str, Scenario]
) -> int:
    """Run each module until its first catch, or against everything; return the exit code."""
    begun_s = time.monotonic()
    trials: list[Trial] = []
    how = against_all if options.full else until_caught

    def tell(trial: Trial) -> None:
        print(report.line(trial), flush=True)
        trials.append(trial)

    async def work(setup: Setup) -> None:
        trials[:] = await how(setup, tell)

    try:
        asyncio.run(_with_launcher(options, entries, scenarios, work))
    except asyncio.CancelledError:
        print(f"interrupted: {report.counts(trials)}")
        return EXIT_INTERRUPTED
    for trial in trials:
        if trial.disputed and not trial.catches:
            print(report.line(trial))
    print(f"{report.counts(trials)}, in {time.monotonic() - begun_s:.1f} s")
    ran = list(scenarios) if options.full else None
    if ran is not None:
        idle = report.needed_by_nobody(trials, ran)
        print(f"needed by nobody: {len(idle)} of {len(ran)} scenarios")
    written = report.write(options.out, trials, ran)
    print(f"reports: {', '.join(map(str, written))}")
    return 0 if all(trial.catches for trial in trials) else Verdict.FAIL.exit_code


def _find_needs(
    options: argparse.Namespace, entries: dict[str, Entry], scenarios: dict[str, Scenario]
) -> int:
    """Find a module that each scenario catches; return the exit code."""
    begun_s = time.monotonic()
    table = needs.load()
    found: list[needs.Need] = []

    def tell(need: needs.Need) -> None:
        print(needs_report.line(need, table), flush=True)
        found.append(need)

    async def work(setup: Setup) -> None:
        await needs.find_needs(setup, table.catches, tell)

    try:
        asyncio.run(_with_launcher(options, entries, scenarios, work))
    except asyncio.CancelledError:
        print(f"interrupted: {needs_report.counts(table, found)}")
        return EXIT_INTERRUPTED
    if options.record:
        # Names are forgotten only where the whole catalogue was looked at.
        there = {**dict.fromkeys(table.catches if options.paths else ()), **scenarios}
        needs.record(needs.merge(table, found, there))
        print(f"written: {needs.TABLE}")
    print(f"{needs_report.counts(table, found)}, in {time.monotonic() - begun_s:.1f} s")
    print(f"report: {needs_report.write(options.out, table, found)}")
    return Verdict.FAIL.exit_code if any(needs.unneeded(table, found)) else 0


def load_scenarios(paths: Sequence[Path]) -> list[Scenario]:
    """Return the scenarios of these files.

    Raises:
        UsageError: a file has errors, which it holds all of.
    """
    files = [load_file(path) for path in discover(paths)]
    errors = dict.fromkeys(str(error) for file in files for error in file.errors)
    if errors:
        raise UsageError("\n".join(errors))
    return [scenario for file in files for scenario in file.scenarios]


async def _with_launcher(
    options: argparse.Namespace,
    entries: dict[str, Entry],
    scenarios: dict[str, Scenario],
    work: Callable[[Setup], Awaitable[None]],
) -> None:
    _cancel_on_signals()
    parts = default_parts(DEFAULT, scenarios.values())
    async with Launcher(parts.preload) as launcher:
        await check_targets(launcher, [DEFAULT, *map(target_of, entries)])
        run = WithSuite(launcher, parts, options.out)
        await work(Setup(entries, scenarios, run, good_target=DEFAULT, jobs=options.jobs))


def _cancel_on_signals() -> None:
    """Turn Ctrl-C and SIGTERM into this task's cancellation, so that everything is torn down."""
    task = asyncio.current_task()
    assert task is not None, "expected to be called from a task"

    def cancel_once() -> None:
        if not task.cancelling():  # a second Ctrl-C must not cut the tearing down short
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, cancel_once)
