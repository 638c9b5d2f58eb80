"""A thread runs native code for ever and never gives Python's lock back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import repeat
from typing import ClassVar

from harness.contracts import Exchange, Json
from harness.faults.kind import FaultKind
from harness.faults.loop import step_back


class Gil(FaultKind):
    """Hold the GIL and a CPU for ever: no other thread of the process runs Python again.

    The process looks busy, its connections stay open, and it answers nothing: neither a request
    nor the thread that would tell of it. Only signals that are handled in C get through.
    """

    kind: ClassVar[str] = "gil"
    strikes: ClassVar[tuple[str, ...]] = ("engine.*", "worker.*", "rank.*")
    never_returns: ClassVar[bool] = True
    takes_a_core: ClassVar[bool] = True

    def label(self) -> str:
        return "holds the GIL"

    async def at_request(self, exchange: Exchange) -> None:
        _hold()

    def in_thread(self, where: Mapping[str, Json]) -> None:
        _hold()


def _hold() -> None:
    step_back()
    deque(repeat(None), maxlen=0)  # a loop in C that never looks whether it should let go
