"""Known bad: every pipeline stage opens its channel at the same time (slime, before pull 2331).

Each engine serves one join at a time. Two stages that reach two engines in crossed order each wait,
in one engine, for the one that waits in the other.
"""

from __future__ import annotations

import time

from harness.contracts import TargetContext
from harness.targets.resync_target import SETTLE_S, ResyncTarget
from resync import PipelineStages, PushTimeouts, WeightUpdater
from resync.agreement import Decision
from resync.steps import Steps

ARRIVAL_S = 0.3  # a stage comes this much later than the one before it, so that runs are alike


class AtOnce(WeightUpdater):
    """Opens without turns."""

    def _open(self, steps: Steps) -> Decision:
        assert self._channel is not None
        assert self._stages is not None
        open_channel, own = self._channel.open, self._stages.own

        def open_own() -> None:
            time.sleep(own * ARRIVAL_S)
            open_channel()

        return steps.on_every_rank("connect", open_own)


def build(context: TargetContext) -> ResyncTarget:
    timeouts = PushTimeouts(
        init_s=context.timeouts.init_s, request_s=context.timeouts.request_s, settle_s=SETTLE_S
    )
    updater = AtOnce(
        open_channel=context.open_channel,
        source=context.source,
        transport=context.transport,
        timeouts=timeouts,
        stages=PipelineStages(own=context.stage, senders=context.stages),
        observe=context.observe,
    )
    return ResyncTarget(context, updater)
