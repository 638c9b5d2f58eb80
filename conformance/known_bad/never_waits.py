"""The good updater, which cleans up and resends at once after a time-out."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl, Fleet, Observer, PushTimeouts
from resync.line import Line
from resync.replies import Replies


class Hasty(Line):
    """Sends each request whatever may still be under way."""

    async def until_idle(self, action: str = "idle") -> None:
        """Do not wait."""


class Trusting(EngineControl):
    """Takes an engine that it has paused for paused."""

    async def require_paused(self, action: str) -> None:
        """Do not look."""


def _fleet(urls: Mapping[int, str], timeouts: PushTimeouts, observe: Observer) -> Fleet:
    fleet = Fleet(urls, timeouts, observe=observe)
    for engine in fleet.engines:
        engine.__class__ = Trusting
        engine.line.__class__ = Hasty
        engine.replies = Replies(engine.line)
    return fleet


def build(context: TargetContext) -> ResyncTarget:
    target = build_good(context)
    put(target._updater, "_make_fleet", _fleet)
    return target
