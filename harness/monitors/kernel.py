"""What the kernel says of a process that does not move: its state, its CPU time, what it waits in.

Everything here is read from ``/proc`` and may be missing: the process ends, or a container forbids
to look. Then the answer says less.

Source: man 5 proc (``stat``, ``task/TID/syscall``); arch/x86/entry/syscalls/syscall_64.tbl.
"""

from __future__ import annotations

import contextlib
import os
import platform
import struct
import time
from pathlib import Path

from harness.monitors.snapshot import ProcessAt

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IS_X86 = platform.machine() == "x86_64"  # the numbers below are its own
_NANOSLEEP, _CLOCK_NANOSLEEP, _FUTEX = 35, 230, 202
_POLL, _PPOLL, _SELECT, _PSELECT, _EPOLL_WAIT, _EPOLL_PWAIT = 7, 271, 23, 270, 232, 281
_POLLS = (_POLL, _PPOLL, _SELECT, _PSELECT, _EPOLL_WAIT, _EPOLL_PWAIT)
_CLOCK_MONOTONIC = 1
_TIMER_ABSTIME = 1
_FUTEX_WAIT_BITSET, _FUTEX_COMMAND, _FUTEX_CLOCK_REALTIME = 9, 0x7F, 256
_TIMESPEC = struct.Struct("qq")


def cpu_s(pid: int) -> float | None:
    """Return the CPU time that a process has used, in seconds; ``None`` if it is gone."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S if fields else None


def is_runnable(pid: int) -> bool:
    """Whether a thread of a process runs, or would if it were given a CPU."""
    with contextlib.suppress(OSError):  # it has gone
        tasks = os.listdir(f"/proc/{pid}/task")
        return any(_stat(pid, task)[:1] == ["R"] for task in tasks)
    return False


def look_at(pid: int) -> ProcessAt:
    """Return a process's state, and what its main thread waits in."""
    fields = _stat(pid)
    if not fields:
        return ProcessAt()
    at = ProcessAt(state=fields[0])
    return at if at.is_stopped or not _IS_X86 else _with_wait(pid, fields[0])


def _with_wait(pid: int, state: str) -> ProcessAt:
    try:
        words = Path(f"/proc/{pid}/task/{pid}/syscall").read_text().split()
    except OSError:
        return ProcessAt(state=state)
    if not words or words[0] in ("running", "-1"):
        return ProcessAt(state=state)
    number, *arguments = (int(word, 0) for word in words[:7])
    if number == _CLOCK_NANOSLEEP:
        is_absolute = arguments[:2] == [_CLOCK_MONOTONIC, _TIMER_ABSTIME]
        ends_s = _timespec(pid, arguments[2]) if is_absolute else None
        return ProcessAt(state=state, wait="sleep", ends_s=ends_s)
    if number == _NANOSLEEP:
        return ProcessAt(state=state, wait="sleep")
    if number == _FUTEX:
        return ProcessAt(state=state, wait="lock", ends_s=_futex_end(pid, arguments))
    return ProcessAt(state=state, wait="poll" if number in _POLLS else None)


def _futex_end(pid: int, arguments: list[int]) -> float | None:
    """Return when a wait for a lock ends; ``None`` where it has no limit, or a relative one.

    Locks with a time-out, Python's and C++'s, wait until a time of one of the two clocks.
    """
    operation, limit = arguments[1], arguments[3]
    if not limit or operation & _FUTEX_COMMAND != _FUTEX_WAIT_BITSET:
        return None
    ends_s = _timespec(pid, limit)
    if ends_s is None or not operation & _FUTEX_CLOCK_REALTIME:
        return ends_s
    return ends_s - time.time() + time.monotonic()


def _timespec(pid: int, address: int) -> float | None:
    """Return a time from another process's memory, in seconds."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            seconds, nanoseconds = _TIMESPEC.unpack(memory.read(_TIMESPEC.size))
    except (OSError, OverflowError, struct.error):
        return None
    return float(seconds + nanoseconds / 1e9)


def _stat(pid: int, task: str | None = None) -> list[str]:
    """Return the fields of ``/proc/PID/stat``, or a thread's, from the state on; empty if gone."""
    try:
        folder = f"/proc/{pid}" if task is None else f"/proc/{pid}/task/{task}"
        text = Path(f"{folder}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
