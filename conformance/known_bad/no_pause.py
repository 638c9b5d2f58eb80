"""No pause: the weights are taken from under engines that generate.

Met in https://github.com/vllm-project/vime/pull/168.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl


async def _pause(engine: EngineControl) -> None:
    engine.paused = True


async def _believe(engine: EngineControl, action: str) -> None:
    """Do not look."""


def build(context: TargetContext) -> ResyncTarget:
    put(EngineControl, "pause", _pause)
    put(EngineControl, "require_paused", _believe)
    return build_good(context)
