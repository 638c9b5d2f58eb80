"""The scratch directory, its sweep, and what is reported as left behind."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.processes import ProcessIdentity, identify, leftovers, start_ticks
from harness.scratch import OWNER, PREFIX, Scratch, default_base, sweep

NAMESPACE = os.readlink("/proc/self/ns/pid")
ALIVE = os.getpid()
TICKS = start_ticks(os.getpid())


def _dead_pid() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


DEAD = _dead_pid()


def _owner(pid: int, ticks: int | None, namespace: str = NAMESPACE) -> dict[str, Any]:
    return {"pid": pid, "start_ticks": ticks, "pid_namespace": namespace}


# fmt: off
SWEEPS = [
    # id                name              owner.json                     swept
    ("dead",            f"{DEAD}-x",      _owner(DEAD, 5),               True),
    ("alive",           f"{ALIVE}-x",     _owner(ALIVE, TICKS),          False),
    ("pid-used-again",  f"{ALIVE}-x",     _owner(ALIVE, 5),              True),
    ("other-container", f"{DEAD}-x",      _owner(DEAD, 5, "pid:[1]"),    False),
    ("not-written-yet", f"{ALIVE}-x",     None,                          False),
    ("never-written",   f"{DEAD}-x",      None,                          True),
    ("owner-no-object", f"{DEAD}-x",      [],                            True),
    ("owner-no-keys",   f"{ALIVE}-x",     {},                            False),
    ("somebody's",      "results-x",      None,                          False),
]
# fmt: on


@pytest.mark.parametrize(
    ("name", "owner", "swept"), [case[1:] for case in SWEEPS], ids=[case[0] for case in SWEEPS]
)
def test_sweep(tmp_path: Path, name: str, owner: Mapping[str, Any] | None, swept: bool) -> None:
    """A directory goes when its owner has died, and never while it may live."""
    path = tmp_path / f"{PREFIX}{name}"
    (path / "deep").mkdir(parents=True)
    if owner is not None:
        (path / OWNER).write_text(json.dumps(owner))
    assert sweep(tmp_path) == ([path] if swept else [])
    assert path.exists() is not swept


def test_sweep_leaves_what_is_not_ours(tmp_path: Path) -> None:
    """Other names, files and links are not scratch directories."""
    (tmp_path / "other").mkdir()
    (tmp_path / f"{PREFIX}{DEAD}-file").touch()
    (tmp_path / f"{PREFIX}{DEAD}-link").symlink_to(tmp_path / "other")
    assert sweep(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 3


def test_scratch_lives_as_long_as_its_context(tmp_path: Path) -> None:
    """It names its owner, is private, gives scenarios directories, and goes as a whole."""
    with Scratch(tmp_path) as scratch:
        assert scratch.path.parent == tmp_path
        assert scratch.path.name.startswith(f"{PREFIX}{os.getpid()}-")
        assert scratch.path.stat().st_mode & 0o777 == 0o700
        first, second = (scratch.subdirectory("push/one [ipc]") for _ in range(2))
        assert first.name.startswith("push_one__ipc_-")
        assert first != second
        (first / "file").touch()
        assert Scratch(tmp_path).swept == []
    assert not scratch.path.exists()
    scratch.remove()


def test_scratch_prefers_memory() -> None:
    """The default is /dev/shm on Linux."""
    assert default_base() == Path("/dev/shm")


def test_leftovers_of_nothing(tmp_path: Path) -> None:
    """Processes that ended, pids used again, free ports and no directory are no leftovers."""
    again = ProcessIdentity(ALIVE, 5)
    ended = ProcessIdentity(DEAD, 5)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # bound, not listening
        port = sock.getsockname()[1]
        assert leftovers(tmp_path / "gone", [again, ended], [port]) == []


def test_leftovers_are_named(tmp_path: Path) -> None:
    """Each process, port and file gets a sentence."""
    me = identify(ALIVE)
    assert me is not None
    (tmp_path / "store").touch()
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        assert leftovers(tmp_path, [me], [port]) == [
            f"process {ALIVE} still exists, in state R",
            f"port {port} is still listened on",
            f"the directory {tmp_path} still exists",
            f"the file {tmp_path / 'store'} still exists",
        ]
