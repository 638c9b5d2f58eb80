"""Somebody took a lock and left without giving it back."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import ClassVar

from harness.contracts import Exchange, Json
from harness.faults.kind import FaultKind


class Lock(FaultKind):
    """Wait for a lock whose owner, a thread that has ended, never released it.

    At a front end it is the event loop's thread that waits, so the engine answers nothing any
    more. The process is idle and its other threads live: no wait-for graph shows who it waits for.
    """

    kind: ClassVar[str] = "lock"
    strikes: ClassVar[tuple[str, ...]] = ("engine.*", "worker.*", "rank.*")
    never_returns: ClassVar[bool] = True

    def label(self) -> str:
        return "waits for a leaked lock"

    async def at_request(self, exchange: Exchange) -> None:
        _wait_for_a_leaked_lock()

    def in_thread(self, where: Mapping[str, Json]) -> None:
        _wait_for_a_leaked_lock()


def _wait_for_a_leaked_lock() -> None:
    lock = threading.Lock()
    owner = threading.Thread(target=lock.acquire, name="leaks-a-lock", daemon=True)
    owner.start()
    owner.join()
    lock.acquire()
