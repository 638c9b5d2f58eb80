"""Somebody stops for ever: a front end that never answers, or a thread that never moves again."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import ClassVar

from harness.contracts import Exchange, Json
from harness.faults.kind import FaultKind


class Hang(FaultKind):
    """Hold the request, or block the thread, until the client or the process has gone.

    At a front end the request never reaches the engine. A blocked worker holds up every later
    request that needs the engine's core, as the real one does.
    """

    kind: ClassVar[str] = "hang"
    strikes: ClassVar[tuple[str, ...]] = ("engine.*", "worker.*", "rank.*")
    never_returns: ClassVar[bool] = True

    def label(self) -> str:
        return "hangs"

    async def at_request(self, exchange: Exchange) -> None:
        await exchange.hold()

    def in_thread(self, where: Mapping[str, Json]) -> None:
        threading.Event().wait()  # a lock, not a spin: signals and faulthandler still get through
