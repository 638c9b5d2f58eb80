"""Known bad: every pipeline stage opens its channel at the same time (slime, before pull 2331).

Each engine serves one join at a time. Two stages that reach two engines in crossed order each wait,
in one engine, for the one that waits in the other.
"""

from __future__ import annotations

import time

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import WeightUpdater
from resync.agreement import Decision
from resync.steps import Steps

ARRIVAL_S = 0.3  # a stage comes this much later than the one before it, so that runs are alike

_open = WeightUpdater._open


def _open_at_once(updater: WeightUpdater, steps: Steps) -> Decision:
    channel, stages = updater._channel, updater._stages
    if channel is None or stages is None:
        return _open(updater, steps)

    def open_own() -> None:
        time.sleep(stages.own * ARRIVAL_S)
        channel.open()

    return steps.on_every_rank("connect", open_own)


def build(context: TargetContext) -> ResyncTarget:
    put(WeightUpdater, "_open", _open_at_once)
    return build_good(context)
