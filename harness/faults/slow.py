"""Everything works, later."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from pydantic import Field, PrivateAttr

from harness.contracts import Exchange, Json
from harness.faults.kind import FaultKind


class Slow(FaultKind):
    """Wait for some time before the request is handled, or before the thread goes on.

    Attributes:
        seconds: how long each visit that it strikes waits.
        jitter: the most that one wait is longer or shorter than that, in seconds. Each is drawn
            from the scenario's seed; none is shorter than nothing.
    """

    kind: ClassVar[str] = "slow"
    strikes: ClassVar[tuple[str, ...]] = ("engine.*", "worker.*", "rank.*")

    seconds: Annotated[float, Field(gt=0)]
    jitter: Annotated[float, Field(ge=0)] = 0.0

    _seed: str = PrivateAttr(default="")
    _strikes: Counter[Json] = PrivateAttr(default_factory=Counter)  # worker -> waits so far

    def seeded(self, seed: str) -> Self:
        copy = self.model_copy()
        copy._seed, copy._strikes = seed, Counter()
        return copy

    def label(self) -> str:
        about = f"is slow by {self.seconds:g} s"
        return f"{about}, give or take {self.jitter:g}" if self.jitter else about

    async def at_request(self, exchange: Exchange) -> None:
        await asyncio.sleep(self.next_wait_s())
        await exchange.forward()

    def in_thread(self, where: Mapping[str, Json]) -> None:
        time.sleep(self.next_wait_s(where.get("worker")))

    def next_wait_s(self, worker: int | None = None) -> float:
        """Return how long the next visit that it strikes waits, of one worker or without one."""
        self._strikes[worker] += 1
        drawn = random.Random(f"{self._seed}:{worker}:{self._strikes[worker]}")
        return max(0.0, self.seconds + drawn.uniform(-self.jitter, self.jitter))
