"""What the soak found: one record a run, and the table of all."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from harness.contracts import Verdict
from harness.monitors.classify import Kind
from harness.monitors.progress import is_progress
from harness.soak.slow_rank import EVENT

HANGS = frozenset({Kind.DEADLOCK, Kind.STUCK})
TOLD_LATE_S = 0.2  # a stall may be told of this long after its end


@dataclass(frozen=True, kw_only=True)
class Silence:
    """The longest time without progress in a run's commands.

    Attributes:
        seconds: how long.
        called: what the monitor called it; empty where it said nothing.
    """

    seconds: float
    called: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SoakRun:
    """One run.

    Attributes:
        kind: name of its kind.
        loaded: whether busy processes ran beside it.
        calls: what the monitor called its stalls and its end, in order.
        share: of a CPU that its slow rank got, where it had one.
        seconds: from its first process to its last.
        out_dir: of its journal and logs; gone if it passed.
    """

    kind: str
    loaded: bool
    verdict: Verdict
    sentence: str
    calls: tuple[str, ...]
    silence: Silence
    share: float | None
    seconds: float
    out_dir: Path

    @property
    def called_a_hang(self) -> bool:
        """Whether the monitor called anything in it a hang, or ended it."""
        return self.verdict is Verdict.HANG or not HANGS.isdisjoint(self.calls)

    @property
    def is_good(self) -> bool:
        """Whether it passed, and nothing in it was called a hang."""
        return self.verdict is Verdict.PASS and not self.called_a_hang


def longest_silence(events: Sequence[Mapping[str, Any]]) -> Silence:
    """Return the longest time without progress from the first command's begin to the last's end.

    Args:
        events: of one journal, in any order.
    """
    in_order = sorted(events, key=lambda event: event["t"])
    commands = [
        e["t"] for e in in_order if e["event"] == "command" and e["command"] in ("connect", "push")
    ]
    if not commands:
        return Silence(seconds=0.0, called=())
    times = [e["t"] for e in in_order if is_progress(e) and commands[0] <= e["t"] <= commands[-1]]
    begin, end = max(pairwise(times), key=lambda pair: pair[1] - pair[0], default=(0.0, 0.0))
    told = (e for e in in_order if e["event"] == "diagnosis")
    called = [e["kind"] for e in told if begin < e["t"] <= end + TOLD_LATE_S]
    return Silence(seconds=end - begin, called=tuple(called))


def share_of(events: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the share of a CPU that a slow rank noted; ``None`` without one."""
    return next((event["share"] for event in events if event["event"] == EVENT), None)


def print_table(runs: Sequence[SoakRun], console: Console) -> None:
    """Print a row per kind of run, and for each longest silence what it was called."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("kind of run", no_wrap=True)
    for heading in ("runs", "hangs", "failed", "slowest"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("longest silence", no_wrap=True)
    table.add_column("stalls named")
    for loaded in (False, True):
        if loaded and any(run.loaded for run in runs):
            table.add_row("beside busy processes:")
        for kind in dict.fromkeys(run.kind for run in runs):
            of_kind = [run for run in runs if (run.kind, run.loaded) == (kind, loaded)]
            if of_kind:
                table.add_row(*_row(kind, of_kind))
        table.add_section()
    console.print(table)
    for kind in dict.fromkeys(run.kind for run in runs):
        shares = [run.share for run in runs if run.kind == kind and run.share is not None]
        if shares:
            console.print(
                f"{kind} got {statistics.median(shares):.1%} of one at the median "
                f"({min(shares):.1%} to {max(shares):.1%}), of the time in which it wanted one"
            )


def _row(kind: str, runs: Sequence[SoakRun]) -> list[str]:
    longest = max((run.silence for run in runs), key=lambda silence: silence.seconds)
    stalls = Counter(call for run in runs for call in run.calls)
    hangs = sum(run.called_a_hang for run in runs)
    called = ", ".join(dict.fromkeys(longest.called)) or "not named"
    return [
        kind,
        str(len(runs)),
        str(hangs),
        str(sum(not run.is_good for run in runs) - hangs),
        f"{max(run.seconds for run in runs):.1f} s",
        f"{longest.seconds:.2f} s, {called}",
        ", ".join(f"{count} {call}" for call, count in stalls.most_common()) or "-",
    ]
