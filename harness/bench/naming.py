"""How long after the last progress a deadlock is named: every deadlocking scenario, 4 to 64 ranks.

Read from the journals: from the last event that was progress of the push to the ``halt``, which is
recorded once the verdict is proven.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.monitors.progress import is_progress
from harness.observation import RunSeen
from harness.scenario import Scenario
from harness.scenario_file import discover, load_file
from harness.soak.busy import busy_processes

CATALOGUE = Path(__file__).parents[2] / "scenarios"
GROWN = "hangs/sketch[4]"  # the scenario that is run with other numbers of ranks, too
RANKS = (4, 16, 64)
MEDIAN_BUDGET_S, WORST_BUDGET_S = 0.3, 1.0

Conduct = Callable[[Scenario], Awaitable[RunSeen]]


def deadlocking() -> list[Scenario]:
    """Return every scenario of the catalogue that expects a deadlock, each name once, and the
    sketch with every number of `RANKS`.

    Raises:
        ValueError: a file of the catalogue has errors, or the sketch has gone.
    """
    files = [load_file(path) for path in discover([CATALOGUE])]
    errors = [str(error) for file in files for error in file.errors]
    if errors:
        raise ValueError("\n".join(errors))
    found = {
        scenario.name: scenario
        for file in files
        for scenario in file.scenarios
        if any(expected.outcome == "deadlock" for expected in scenario.expect)
    }
    if GROWN not in found:
        raise ValueError(f"{CATALOGUE}: expected {GROWN} among {sorted(found)}.")
    for ranks in RANKS:
        grown = _with_ranks(found[GROWN], ranks)
        found.setdefault(grown.name, grown)
    return list(found.values())


def _with_ranks(scenario: Scenario, ranks: int) -> Scenario:
    trainer = {"ranks": ranks}
    model = type(scenario.trainer).model_validate(trainer)
    name = f"{scenario.name.partition('[')[0]}[{ranks}]"
    return scenario.model_copy(update={"trainer": model}).named(name, scenario.path)


def named_s(events: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds from the last progress to the first report of a deadlock.

    Raises:
        ValueError: none was reported.
    """
    last_s = None
    for event in sorted(events, key=lambda each: each["t"]):
        if event["event"] == "halt" and event["kind"] == "deadlock" and last_s is not None:
            return float(event["t"] - last_s)
        if is_progress(event):
            last_s = event["t"]
    raise ValueError("expected a deadlock to be reported, found none in the journal.")


async def measure(conduct: Conduct, repeat: int) -> dict[str, dict[str, list[float]]]:
    """Return ``at rest`` and ``loaded`` -> scenario -> the seconds of each repetition.

    Args:
        conduct: runs one scenario, without the push that closes it.
        repeat: repetitions of each, at rest; a third of them, and at least one, beside a load.
    """
    found: dict[str, dict[str, list[float]]] = {}
    scenarios = deadlocking()
    for where, num_busy, times in (("at rest", 0, repeat), ("loaded", 2, max(repeat // 3, 1))):
        with busy_processes(num_busy):
            found[where] = {
                scenario.name: [named_s((await conduct(scenario)).events) for _ in range(times)]
                for scenario in scenarios
            }
    return found


def rows(found: Mapping[str, Mapping[str, Sequence[float]]]) -> list[tuple[str, str, str, str]]:
    """Return the lines of the table: what, the median, the worst, and the budget, of all alone."""
    lines = []
    for where, by_name in found.items():
        everything = [seconds for times in by_name.values() for seconds in times]
        is_over = (
            statistics.median(everything) > MEDIAN_BUDGET_S or max(everything) > WORST_BUDGET_S
        )
        budget = f"budget of {MEDIAN_BUDGET_S:g} s, {WORST_BUDGET_S:g} s at most"
        what = f"a deadlock named, {where}, all {len(by_name)} scenarios"
        lines.append((*_row(what, everything), f"{'OVER the ' if is_over else ''}{budget}"))
        if where == "at rest":
            lines += [(*_row(f"  {name}", times), "") for name, times in by_name.items()]
    return lines


def _row(what: str, times: Sequence[float]) -> tuple[str, str, str]:
    return what, f"{statistics.median(times):.3f} s", f"{max(times):.3f} s at most"
