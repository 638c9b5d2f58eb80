"""The connection breaks before the engine has done anything."""

from __future__ import annotations

from typing import ClassVar

from harness.contracts import Exchange
from harness.faults.kind import FaultKind


class Disconnect(FaultKind):
    """Close the connection at once; the request has no effect."""

    kind: ClassVar[str] = "disconnect"
    strikes: ClassVar[tuple[str, ...]] = ("engine.*",)

    def label(self) -> str:
        return "drops the connection"

    async def at_request(self, exchange: Exchange) -> None:
        await exchange.drop()
