"""The request takes effect and its answer is lost."""

from __future__ import annotations

from typing import ClassVar

from harness.contracts import Exchange
from harness.faults.kind import FaultKind


class ReplyLost(FaultKind):
    """Let the engine act, then throw its answer away.

    Attributes:
        silent: leave the connection open until the client's own time-out. By default it is closed,
            so that the client knows at once that it does not know.
    """

    kind: ClassVar[str] = "reply_lost"
    strikes: ClassVar[tuple[str, ...]] = ("engine.*",)

    silent: bool = False

    def label(self) -> str:
        return "loses the reply"

    async def at_request(self, exchange: Exchange) -> None:
        await exchange.forward(deliver=False)
        if self.silent:
            await exchange.hold()
        else:
            await exchange.drop()
