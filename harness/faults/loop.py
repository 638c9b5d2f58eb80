"""A thread loops for ever in Python."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import ClassVar

from harness.contracts import Exchange, Json
from harness.faults.kind import FaultKind

NICE = 10


class Loop(FaultKind):
    """Loop without end or wait. The other threads of the process go on, at half the speed.

    At a front end that is the event loop's thread, so the engine answers nothing any more.
    """

    kind: ClassVar[str] = "loop"
    strikes: ClassVar[tuple[str, ...]] = ("engine.*", "worker.*", "rank.*")
    never_returns: ClassVar[bool] = True
    takes_a_core: ClassVar[bool] = True

    def label(self) -> str:
        return "loops for ever"

    async def at_request(self, exchange: Exchange) -> None:
        _loop()

    def in_thread(self, where: Mapping[str, Json]) -> None:
        _loop()


def step_back() -> None:
    """Let the calling thread have only what CPU time the rest of the machine leaves over.

    It runs all the same; without this a few such faults at a time would starve healthy processes,
    whose time-outs are not what the scenario is about.
    """
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def _loop() -> None:
    step_back()
    while True:
        pass
