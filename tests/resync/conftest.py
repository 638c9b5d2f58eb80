"""What the tests of `resync` share: worlds of thread ranks, and no thread left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from push_world import MakeWorld, World


@pytest.fixture
def make_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeWorld]:
    """Make worlds; each is closed and checked at the end."""
    worlds: list[World] = []

    def make(**fields: Any) -> World:
        worlds.append(World(**fields).start(monkeypatch))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    """A test ends with the threads that it began with."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(2)
        assert not thread.is_alive(), f"{thread.name} is still running"
