"""The good updater, which cleans up and resends at once after a time-out."""

from __future__ import annotations

from collections.abc import Mapping

from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from resync import EngineControl, Fleet, Observer, PushTimeouts, WeightUpdater
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
    updater = WeightUpdater(
        open_channel=context.open_channel,
        source=context.source,
        transport=context.transport,
        timeouts=PushTimeouts(init_s=context.timeouts.init_s, request_s=context.timeouts.request_s),
        observe=context.observe,
        make_fleet=_fleet,
    )
    return ResyncTarget(context, updater)
