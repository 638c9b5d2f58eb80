"""A trainer rank at a tenth of a CPU: the entry point that takes the place of a rank's own.

No root, no cgroup: the scheduler itself gives it that share. The rank and a process that never
rests are bound to one CPU, and ten steps of nice are a weight of 110 against 1024, 19 one of 15.
Both are in one session, since Linux weighs sessions, not processes, against each other where
autogroup is on.

Source: man 7 sched ("The autogroup feature"); kernel/sched/core.c, ``sched_prio_to_weight``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from harness.contracts import Channel, Json
from harness.journal import JournalWriter
from harness.parts import RANK_ENTRY

SLOW_RANK = 1
TENTH, STARVED = 10, 19  # steps of nice below what it shares the CPU with
EVENT = "cpu_share"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(config: Mapping[str, Json], channel: Channel, sockets: list[socket.socket]) -> None:
    """Be one trainer rank; rank `SLOW_RANK` at a tenth of a CPU, with its share in the journal."""
    _be_a_rank(TENTH, config, channel, sockets)


def starved(config: Mapping[str, Json], channel: Channel, sockets: list[socket.socket]) -> None:
    """The same, at the least that nice gives: races show that are too short at any other pace."""
    _be_a_rank(STARVED, config, channel, sockets)


def _be_a_rank(
    nicer: int, config: Mapping[str, Json], channel: Channel, sockets: list[socket.socket]
) -> None:
    module, _, function = RANK_ENTRY.partition(":")
    entry = getattr(importlib.import_module(module), function)
    if config["rank"] != SLOW_RANK:
        entry(config, channel, sockets)
        return
    _share_a_cpu(nicer)
    before = _ran_and_waited_ns()
    entry(config, channel, sockets)
    ran_ns, waited_ns = (b - a for a, b in zip(before, _ran_and_waited_ns(), strict=True))
    if ran_ns:
        with JournalWriter(Path(config["journal"]), f"rank:{SLOW_RANK}") as record:
            record(EVENT, share=round(ran_ns / (ran_ns + waited_ns), 4))


def _share_a_cpu(nicer: int) -> None:
    """Bind this process to one CPU, beside a child that never rests, and step back behind it.

    Threads inherit both, and there is only one yet. The child ends with it.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    parent = os.getpid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # an end of the rank's channel among them
        while os.getppid() == parent:
            for _ in range(1 << 16):
                pass
        os._exit(0)
    os.nice(nicer)


def _ran_and_waited_ns() -> tuple[int, int]:
    """Return how long the main thread has run, and how long it wanted to and waited for the CPU.

    Zeros where the kernel does not tell (CONFIG_SCHED_INFO).
    """
    with contextlib.suppress(OSError, ValueError):
        ran_ns, waited_ns, _ = map(int, Path("/proc/self/schedstat").read_text().split())
        return ran_ns, waited_ns
    return 0, 0
