"""The request is lost on its way: no effect, no answer, and the connection stays open."""

from __future__ import annotations

from typing import ClassVar

from harness.contracts import Exchange
from harness.faults.kind import FaultKind


class RequestLost(FaultKind):
    """The engine never sees the request; only the client's own time-out ends the wait."""

    kind: ClassVar[str] = "request_lost"
    strikes: ClassVar[tuple[str, ...]] = ("engine.*",)

    def label(self) -> str:
        return "loses the request"

    async def at_request(self, exchange: Exchange) -> None:
        await exchange.hold()
