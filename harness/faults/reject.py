"""The front end answers with an error in the engine's place; no worker hears of the request."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from harness.contracts import Exchange
from harness.faults.kind import FaultKind


class Reject(FaultKind):
    """Answer with an error, in a body of vLLM's shape. Nothing takes effect.

    Attributes:
        status: the HTTP status of the answer.
        text: what the error says.
    """

    kind: ClassVar[str] = "reject"
    strikes: ClassVar[tuple[str, ...]] = ("engine.*",)

    status: Annotated[int, Field(ge=400, le=599)] = 500
    text: str = "Call to collective_rpc method failed: injected rejection"

    def label(self) -> str:
        return f"answers {self.status}"

    async def at_request(self, exchange: Exchange) -> None:
        name = "InternalServerError" if self.status >= 500 else "Bad Request"
        error = {"message": self.text, "type": name, "param": None, "code": self.status}
        await exchange.respond(self.status, {"error": error})
