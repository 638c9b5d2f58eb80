"""The scratch directory of a run: rendezvous files, logs and shared memory of its scenarios.

One directory per run, in memory where the machine has ``/dev/shm``. It names its owner, so that
the next run removes what a killed one could not.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.processes import identify, start_ticks

PREFIX = "resync-chaos-"
OWNER = "owner.json"


class Scratch:
    """A run's scratch directory, private to the user. Leaving the context removes it."""

    def __init__(self, base: Path | None = None) -> None:
        """Sweep ``base``, then create the directory in it.

        Args:
            base: ``/dev/shm`` by default, or the system's temporary directory without it.

        Raises:
            OSError: ``base`` does not exist or is not writable.
        """
        base = base or default_base()
        self.swept = sweep(base)
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base))
        owner = {
            "pid": os.getpid(),
            "start_ticks": start_ticks(os.getpid()),
            "pid_namespace": _pid_namespace(),
        }
        (self.path / OWNER).write_text(json.dumps(owner))

    def subdirectory(self, name: str) -> Path:
        """Create and return a scenario's own directory; ``name`` may repeat."""
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        return Path(tempfile.mkdtemp(prefix=f"{safe}-", dir=self.path))

    def remove(self) -> None:
        """Remove the directory and all in it; fine when it has gone already."""
        remove_tree(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def default_base() -> Path:
    """Return where scratch directories live: memory if there is any to write to."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK | os.X_OK):
        return memory
    return Path(tempfile.gettempdir())


def sweep(base: Path) -> list[Path]:
    """Remove the scratch directories under ``base`` whose owner has died; return them.

    Those of other users and of other pid namespaces (containers that share the directory) are left
    alone: whether their owner lives cannot be told from here.
    """
    swept = []
    for path in sorted(base.glob(f"{PREFIX}*-*")):
        try:
            ours = _named_pid(path) is not None and _is_own_directory(path)
        except FileNotFoundError:  # another sweep was faster
            continue
        if ours and not _has_owner(path):
            remove_tree(path)
            swept.append(path)
    return swept


def remove_tree(path: Path) -> None:
    """Remove a directory that dying processes may be writing to, or have removed."""
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():  # a file appeared while the tree was walked
        shutil.rmtree(path, ignore_errors=True)


def _has_owner(path: Path) -> bool:
    try:
        owner = json.loads((path / OWNER).read_text())
        pid, ticks, namespace = owner["pid"], owner["start_ticks"], owner["pid_namespace"]
    except (OSError, ValueError, KeyError, TypeError):
        # Not written yet, or cut off by a full disk: the name tells the pid.
        named = _named_pid(path)
        return named is not None and start_ticks(named) is not None
    if namespace != _pid_namespace():
        return True
    found = identify(pid)
    return found is not None and found.start_ticks == ticks


def _named_pid(path: Path) -> int | None:
    """Return the pid in a scratch directory's name; ``None`` if it is no such name."""
    pid = path.name.removeprefix(PREFIX).partition("-")[0]
    return int(pid) if pid.isdecimal() else None


def _is_own_directory(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
