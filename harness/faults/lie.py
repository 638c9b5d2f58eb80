"""The front end answers 200 in the engine's place, with a body that is not true."""

from __future__ import annotations

from typing import ClassVar

from pydantic import JsonValue

from harness.contracts import Exchange
from harness.faults.kind import FaultKind


class Lie(FaultKind):
    """Answer 200 with a body that is not true. The engine never hears of the request.

    Attributes:
        body: what the answer says, a mapping that is sent as JSON.
    """

    kind: ClassVar[str] = "lie"
    strikes: ClassVar[tuple[str, ...]] = ("engine.*",)

    body: dict[str, JsonValue]

    def label(self) -> str:
        return "answers what is not true"

    async def at_request(self, exchange: Exchange) -> None:
        await exchange.respond(200, self.body)
