"""Everything works, later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from harness.contracts import Exchange, Json
from harness.faults.kind import FaultKind


class Slow(FaultKind):
    """Wait for ``seconds`` before the request is handled, or before the thread goes on."""

    kind: ClassVar[str] = "slow"
    strikes: ClassVar[tuple[str, ...]] = ("engine.*", "worker.*", "rank.*")

    seconds: Annotated[float, Field(gt=0)]

    def label(self) -> str:
        return f"slow by {self.seconds:g} s"

    async def at_request(self, exchange: Exchange) -> None:
        await asyncio.sleep(self.seconds)
        await exchange.forward()

    def in_thread(self, where: Mapping[str, Json]) -> None:
        time.sleep(self.seconds)
