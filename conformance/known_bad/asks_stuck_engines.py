"""Asks a stuck engine: at the next push it is taken for a restarted one, without a look.

What is sent to it queues behind a request that never ends.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl


async def _take_for_new(engine: EngineControl) -> None:
    engine.forget(paused=True)


def build(context: TargetContext) -> ResyncTarget:
    put(EngineControl, "require_restarted", _take_for_new)
    return build_good(context)
