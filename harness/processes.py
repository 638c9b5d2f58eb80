"""What the kernel says about processes: who lives, who is whose, and what a scenario left behind.

A process is identified by its pid and its start time, since pids are used again. The processes of
the launcher also carry a *mark*, a number that everything they fork or exec inherits: it tells to
which of them a grandchild belongs after it left its process group and lost its parent.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

_MARK_BITS = 56
_PF_EXITING = 0x4  # linux/sched.h


@dataclass(frozen=True)
class ProcessIdentity:
    """One process, told apart from a later one with the same pid."""

    pid: int
    start_ticks: int  # clock ticks from boot to the start of the process

    def exists(self) -> bool:
        """Whether the process is there still; a zombie is."""
        return start_ticks(self.pid) == self.start_ticks


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; ``None`` if there is none."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def state(pid: int) -> str | None:
    """Return the kernel's letter for a process: R, S, D, T (stopped), Z; ``None`` if it is gone."""
    fields = _stat(pid)
    return fields[0] if fields else None


def is_exiting(pid: int) -> bool:
    """Whether a process is on its way out, or a zombie: no signal changes its exit status."""
    fields = _stat(pid)
    return fields is None or bool(int(fields[6]) & _PF_EXITING)


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of a process that exists, else ``None``."""
    ticks = start_ticks(pid)
    return None if ticks is None else ProcessIdentity(pid, ticks)


def children_of(pid: int) -> list[int]:
    """Return the children of every thread of a process, zombies and adopted orphans included."""
    children = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            children += Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    except OSError:  # the process has gone, or the kernel lacks CONFIG_PROC_CHILDREN
        return [
            child for child in _all_pids() if (fields := _stat(child)) and fields[1] == f"{pid}"
        ]
    return [int(child) for child in children]


def new_mark_base() -> int:
    """Return a random number; the base plus a small count makes marks unique on the machine."""
    return int.from_bytes(os.urandom(_MARK_BITS // 8)) >> 16 << 16 | 1 << (_MARK_BITS - 1)


def mark_this_process(mark: int) -> None:
    """Mark the calling process and all that it will fork or exec.

    The mark is the soft limit RLIMIT_RTTIME, in microseconds: it survives fork, exec, setsid and
    reparenting, any process of the same user can read it, and the value, some thousand years,
    limits nothing. Where a hard limit forbids it the process stays unmarked.
    """
    hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    if hard == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_RTTIME, (mark, hard))


def mark_of(pid: int) -> int | None:
    """Return the mark of a process; ``None`` when it has none or is not ours to ask."""
    try:
        mark = resource.prlimit(pid, resource.RLIMIT_RTTIME)[0]
    except (ProcessLookupError, PermissionError):
        return None
    return None if mark == resource.RLIM_INFINITY else mark


def marked_processes(marks: Collection[int]) -> list[int]:
    """Return every process of the machine, zombies excluded, that carries one of ``marks``."""
    return [pid for pid in _all_pids() if mark_of(pid) in marks and state(pid) not in ("Z", None)]


def leftovers(
    scratch_dir: Path, processes: Iterable[ProcessIdentity], ports: Iterable[int]
) -> list[str]:
    """Return a sentence for each thing that a scenario left behind; an empty list is right.

    Args:
        scratch_dir: the scenario's own directory, which should have been removed.
        processes: every process that the scenario started.
        ports: TCP ports that its processes listened on.
    """
    left = [
        f"process {process.pid} still exists, in state {state(process.pid)}"
        for process in processes
        if process.exists()
    ]
    left += [f"port {port} is still listened on" for port in sorted(ports) if _is_listened_on(port)]
    if scratch_dir.exists():
        left.append(f"the directory {scratch_dir} still exists")
        left += [f"the file {path} still exists" for path in sorted(scratch_dir.rglob("*"))]
    return left


def _stat(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/PID/stat`` from the state on (man 5 proc: number 3)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()  # the name before it may hold spaces and brackets


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _is_listened_on(port: int) -> bool:
    """Whether somebody accepts connections on a loopback port; the tables in /proc are slow."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
