"""The engine says that it published the version, and did not."""

from __future__ import annotations

from typing import ClassVar

from harness.contracts import Exchange
from harness.faults.kind import FaultKind


class StaleVersion(FaultKind):
    """Answer a publish with 200 and the right body; the engine keeps its old version."""

    kind: ClassVar[str] = "stale_version"
    strikes: ClassVar[tuple[str, ...]] = ("engine.publish",)

    def label(self) -> str:
        return "keeps its old version"

    async def at_request(self, exchange: Exchange) -> None:
        asked = await exchange.read_json()
        await exchange.respond(200, {"success": True, "new_version": asked["new_version"]})
