"""The default target: our own `resync`, with the harness's limits and observer."""

from __future__ import annotations

from collections.abc import Mapping

from harness.contracts import Json, TargetContext
from resync import PipelineStages, PushTimeouts, WeightUpdater

# Engines that wait for each other are given up this long after the first has failed. Production
# allows for slow disks and big models; the fakes are fast.
SETTLE_S = 0.5


class ResyncTarget:
    """A `WeightUpdater` on one rank."""

    def __init__(self, context: TargetContext, updater: WeightUpdater) -> None:
        self._context = context
        self._updater = updater

    def connect(self) -> Mapping[str, Json]:
        engines = [engine.url for engine in self._context.engines]
        owners = self._context.owners[: len(engines)]
        return {"attempts": self._updater.reconnect(engines, owners or None)}

    def push(self) -> Mapping[str, Json]:
        return self._updater.push().to_json()

    def version(self) -> str:
        return str(self._updater.weight_version)

    def close(self) -> None:
        self._updater.close()


def build(context: TargetContext) -> ResyncTarget:
    """Return the updater as a target; ``options`` (``mark_dirty``, ``strict``) are passed to it."""
    timeouts = PushTimeouts(
        init_s=context.timeouts.init_s, request_s=context.timeouts.request_s, settle_s=SETTLE_S
    )
    updater = WeightUpdater(
        open_channel=context.open_channel,
        source=context.source,
        transport=context.transport,
        timeouts=timeouts,
        draft=context.draft,
        observe=context.observe,
        stages=_stages(context),
        **context.options,
    )
    return ResyncTarget(context, updater)


def _stages(context: TargetContext) -> PipelineStages | None:
    if not context.stages:
        return None
    return PipelineStages(own=context.stage, senders=context.stages)
