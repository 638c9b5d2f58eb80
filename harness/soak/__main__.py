"""``python -m harness.soak``: many passing runs, of which none may be called a hang.

Among them are slow ones: a gather of 3 s, engines that answer late, a rank at a tenth of a CPU, and
a quarter of all beside two busy processes. Exits with 1 if any was called a hang, or failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from harness.conductor import Conductor
from harness.contracts import Parts, Verdict
from harness.errors import LauncherError
from harness.launcher import Launcher
from harness.parts import default_parts
from harness.scenario import Scenario
from harness.soak.busy import NUM_BUSY, busy_processes
from harness.soak.kinds import KINDS, SLOW_RANK_ENTRY, Plan, RunKind, plan
from harness.soak.tally import Silence, SoakRun, longest_silence, print_table, share_of
from harness.stage import StageError
from harness.suite import JOURNAL
from harness.verdicts.judge import judge

NUM_RUNS = 1000
EXIT_FAILED, EXIT_INTERRUPTED = 1, 130
LINES = 20  # of progress, where no terminal shows a living one
SHOWN = 5  # runs that were not good, with their sentence


class Soak:
    """Runs of a plan, with one launcher.

    Args:
        out_dir: a run has a folder in it, which stays if the run was not good.
        runs: grows as they end.
        jobs: how many go on at once.
        ends_s: when no more are started, on the monotonic clock.
        tell: called after each run.
    """

    def __init__(
        self,
        launcher: Launcher,
        parts: Parts,
        out_dir: Path,
        *,
        runs: list[SoakRun],
        jobs: int,
        ends_s: float,
        tell: Callable[[], None],
    ) -> None:
        self._runs = runs
        self._launcher = launcher
        self._parts = parts
        self._out_dir = out_dir
        self._slots = asyncio.Semaphore(jobs)
        self._turns = {
            kind.name: asyncio.Semaphore(kind.at_a_time) for kind in KINDS if kind.at_a_time
        }
        self._numbers = itertools.count(1)
        self._ends_s = ends_s
        self._tell = tell

    async def run(self, plan: Plan) -> None:
        """Make the runs: first those on a machine at rest, then the others, beside a load.

        Raises:
            LauncherError: no more processes can be started.
        """
        try:
            for loaded, runs in ((False, plan.at_rest), (True, plan.loaded)):
                with busy_processes(NUM_BUSY if loaded and runs else 0):
                    async with asyncio.TaskGroup() as group:
                        for kind, scenario in runs:
                            group.create_task(self._run_one(kind, scenario, loaded=loaded))
        except ExceptionGroup as errors:
            lost = errors.subgroup(LauncherError)  # all runs lose the same launcher
            if lost is None:
                raise
            raise lost.exceptions[0] from None

    async def _run_one(self, kind: RunKind, scenario: Scenario, *, loaded: bool) -> None:
        turn = self._turns.get(kind.name, contextlib.nullcontext())
        async with turn, self._slots:
            if time.monotonic() > self._ends_s:
                return
            out_dir = self._out_dir / str(next(self._numbers))
            found = await self._conduct(kind, scenario, out_dir, loaded=loaded)
            if found.is_good:
                shutil.rmtree(out_dir)
            self._runs.append(found)
            self._tell()

    async def _conduct(
        self, kind: RunKind, scenario: Scenario, out_dir: Path, *, loaded: bool
    ) -> SoakRun:
        parts = self._parts
        if kind.rank_entry is not None:
            parts = replace(parts, rank_entry=kind.rank_entry)
        conductor = Conductor(
            self._launcher, parts, scenario, out_dir=out_dir, closing=kind.closing
        )
        found = SoakRun(
            kind=kind.name,
            loaded=loaded,
            verdict=Verdict.INVALID,
            sentence="",
            calls=(),
            silence=Silence(seconds=0.0, called=()),
            share=None,
            seconds=0.0,
            out_dir=out_dir,
        )
        try:
            seen = await conductor.run()
        except StageError as error:
            return replace(found, sentence=str(error))
        result = judge(scenario, seen, control=None, oracle=parts.oracle, journal=out_dir / JOURNAL)
        return replace(
            found,
            verdict=result.verdict,
            sentence=f"{scenario.name}: {result.sentence}",
            calls=tuple(call for push in seen.pushes for call in push.stalls),
            silence=longest_silence(seen.events),
            share=share_of(seen.events),
            seconds=seen.total_seconds,
        )


class _Counter:
    """Says, now and then, how many runs there were and how many were called a hang."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._begun_s = time.monotonic()
        self._every = 1 if console.is_terminal else max(total // LINES, 1)

    def tell(self, runs: Sequence[SoakRun]) -> None:
        """Print the count, in place where a terminal can."""
        if len(runs) % self._every and len(runs) < self._total:
            return
        hangs = sum(run.called_a_hang for run in runs)
        elapsed_s = time.monotonic() - self._begun_s
        line = f"[{len(runs):>{len(str(self._total))}}/{self._total}] {hangs} called a hang"
        end = "\r" if self._console.is_terminal and len(runs) < self._total else "\n"
        self._console.print(f"{line}, {elapsed_s:.0f} s", end=end)


async def soak(options: argparse.Namespace, console: Console, runs: list[SoakRun]) -> None:
    """Make the runs, and add each to ``runs`` as it ends: Ctrl-C loses none.

    Raises:
        LauncherError: no more processes can be started.
    """
    parts = default_parts()
    chosen = plan(options.runs)
    counter = _Counter(console, options.runs)
    async with Launcher([*parts.preload, SLOW_RANK_ENTRY.partition(":")[0]]) as launcher:
        made = Soak(
            launcher,
            parts,
            options.out / "soak",
            runs=runs,
            jobs=options.jobs,
            ends_s=time.monotonic() + options.seconds,
            tell=lambda: counter.tell(runs),
        )
        await made.run(chosen)


def report(runs: Sequence[SoakRun], console: Console, *, asked: int, elapsed_s: float) -> bool:
    """Print what was found; return whether every run was good, and there was one."""
    print_table(runs, console)
    bad = [run for run in runs if not run.is_good]
    for run in bad[:SHOWN]:
        console.print(f"{run.verdict}: {run.kind}: {run.sentence} ({run.out_dir})", markup=False)
    hangs = sum(run.called_a_hang for run in runs)
    stopped = "" if len(runs) == asked else f", of {asked} asked for"
    console.print(
        f"{len(runs)} runs{stopped}, {hangs} called a hang, {len(bad) - hangs} failed, "
        f"in {elapsed_s:.0f} s"
    )
    return bool(runs) and not bad


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, make the runs and print the count; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m harness.soak", description=__doc__)
    parser.add_argument("--runs", type=_at_least_one, default=NUM_RUNS, metavar="N",
                        help="how many (default: %(default)s)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="S",
                        help="start none after that long (default: no limit)")  # fmt: skip
    parser.add_argument("-j", dest="jobs", type=_at_least_one, default=(os.cpu_count() or 1) + 2,
                        metavar="N", help="runs at a time (default: %(default)s)")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="DIR",
                        help="where bad runs are kept (default: %(default)s)")  # fmt: skip
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    begun_s = time.monotonic()
    runs: list[SoakRun] = []
    interrupted = False
    try:
        asyncio.run(soak(options, console, runs))
    except KeyboardInterrupt:
        interrupted = True
    except LauncherError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    elapsed_s = time.monotonic() - begun_s
    is_good = report(runs, console, asked=options.runs, elapsed_s=elapsed_s)
    if interrupted:
        return EXIT_INTERRUPTED
    return 0 if is_good else EXIT_FAILED


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1, found {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
