"""What watching and the journal cost a passing scenario, in CPU seconds of all its processes.

One scenario runs with the monitor and without it in turn. Without it, nobody looks at the journal
before the end and torch's Flight Recorder is off, so that what both cost is counted.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import os
import socket
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.contracts import Channel, Json
from harness.journal import JournalReader, JournalWriter
from harness.observation import Halt, RunSeen
from harness.parts import RANK_ENTRY
from harness.watch import Tasks, Watch

UNRECORDED_RANK = "harness.bench.cost:unrecorded_rank"
BUDGET = 0.02
MEDIAN_ERROR = 1.858  # of a median of n, over the median deviation / sqrt(n): 1.4826 * sqrt(pi / 2)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_JOURNAL_REPEAT = 20

Conduct = Callable[[bool], Awaitable[RunSeen]]  # given whether it is monitored


class Unwatched(Watch):
    """Waits until every rank has ended its command, and looks at nothing meanwhile."""

    async def _watch(self, tasks: Tasks, end_s: float) -> Halt | None:
        _, late = await asyncio.wait(tasks.values(), timeout=end_s - time.monotonic())
        assert not late, "expected a scenario that passes by itself"
        self._progress.catch_up()
        return None


def unrecorded_rank(
    config: Mapping[str, Json], channel: Channel, sockets: list[socket.socket]
) -> None:
    """Be a trainer rank without torch's Flight Recorder: an entry point."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"  # before its first process group
    module, _, function = RANK_ENTRY.partition(":")
    getattr(importlib.import_module(module), function)(config, channel, sockets)


def children_cpu_s(zygote_pid: int) -> float:
    """Return the CPU seconds so far of the zygote and of the children that it has reaped."""
    fields = Path(f"/proc/{zygote_pid}/stat").read_text().rpartition(")")[2].split()
    # utime, stime, cutime and cstime: numbers 14 to 17 of man 5 proc, which begins at the state, 3.
    return sum(map(int, fields[11:15])) / _TICKS_PER_S


async def monitoring(conduct: Conduct, zygote_pid: int, pairs: int) -> dict[str, float]:
    """Return the CPU seconds of a run that is monitored and of one that is not.

    Args:
        conduct: runs the scenario once.
        pairs: of a run with and a run without, at least 2.

    Returns:
        ``without_s``, a median; ``with_s``, as much more as the medians of the pairs; ``share``, by
        which that is more, and ``launcher_share``, what the process that watches has of it;
        ``error`` and ``launcher_error``, their standard errors.
    """
    here: list[float] = []  # by which this process takes more; the children, and without all that
    there: list[float] = []
    without: list[float] = []
    for number in range(pairs):
        spent = {}
        for monitored in (True, False) if number % 2 else (False, True):
            begun = time.process_time(), children_cpu_s(zygote_pid)
            await conduct(monitored)
            ended = time.process_time(), children_cpu_s(zygote_pid)
            spent[monitored] = [b - a for a, b in zip(begun, ended, strict=True)]
        here.append(spent[True][0] - spent[False][0])
        there.append(spent[True][1] - spent[False][1])
        without.append(sum(spent[False]))
    # Medians: a run that somebody else's processes disturbed takes more, never less.
    base_s, here_s, there_s = map(statistics.median, (without, here, there))
    errors = [
        MEDIAN_ERROR
        * statistics.median(abs(each - middle) for each in each_pair)
        / math.sqrt(pairs)
        for each_pair, middle in ((here, here_s), (there, there_s))
    ]
    return {
        "with_s": base_s + here_s + there_s,
        "without_s": base_s,
        "share": (here_s + there_s) / base_s,
        "error": math.hypot(*errors) / base_s,
        "launcher_share": here_s / base_s,
        "launcher_error": errors[0] / base_s,
    }


def journal(events: Sequence[Mapping[str, Any]], path: Path) -> float:
    """Return the CPU seconds that writing and reading these events takes, once.

    Args:
        events: of one run.
        path: a file to write them to; it is removed.
    """
    fields = [
        {k: v for k, v in event.items() if k not in ("t", "who", "event")} for event in events
    ]
    begun_s = time.process_time()
    for _ in range(_JOURNAL_REPEAT):
        with JournalWriter(path, "rank:0") as record, JournalReader(path) as reader:
            for event, rest in zip(events, fields, strict=True):
                record(event["event"], **rest)
            reader.read_new()
        path.unlink()
    return (time.process_time() - begun_s) / _JOURNAL_REPEAT


def rows(found: Mapping[str, float]) -> list[tuple[str, str, str, str]]:
    """Return the lines of the table: what, the value, beside what, and the share of that."""
    with_s, without_s = found["with_s"], found["without_s"]
    share = f"{found['share']:+.1%} +- {found['error']:.1%}"
    # Over only where that is no noise.
    is_over = found["share"] - 2 * found["error"] > BUDGET
    budget = f"{'OVER the ' if is_over else ''}budget of {BUDGET:.0%}"
    launcher = f"{found['launcher_share']:+.1%} +- {found['launcher_error']:.1%}"
    journal_s, num_events = found["journal_s"], found["num_events"]
    return [
        ("CPU time of a scenario that passes, monitored and not",
         f"{with_s:.3f} s", f"{without_s:.3f} s", f"{share}, {budget}"),
        ("  of that in the process that watches", "", "", launcher),
        (f"CPU time of its journal: {num_events:.0f} events written and read",
         f"{1e3 * journal_s:.1f} ms", f"{with_s:.3f} s", f"{journal_s / with_s:+.1%}"),
    ]  # fmt: skip
