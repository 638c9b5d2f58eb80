"""The good updater, which believes every reply that an engine of several workers gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Fleet, Observer, PushTimeouts
from resync.replies import Replies


class Believed(Replies):
    """Takes each answer for the request's own, and does not probe."""

    async def operate(
        self, action: str, path: str, body: Any = None, limit_s: float | None = None
    ) -> None:
        await self.line.post(action, path, body, limit_s)

    async def verify(self) -> None:
        """Say nothing."""

    async def require_room(self, action: str) -> None:
        """Say nothing."""


def _fleet(urls: Mapping[int, str], timeouts: PushTimeouts, observe: Observer) -> Fleet:
    fleet = Fleet(urls, timeouts, observe=observe)
    for engine in fleet.engines:
        engine.replies = Believed(engine.line)
    return fleet


def build(context: TargetContext) -> ResyncTarget:
    target = build_good(context)
    put(target._updater, "_make_fleet", _fleet)
    return target
