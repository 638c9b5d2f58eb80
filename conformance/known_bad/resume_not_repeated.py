"""Resume not repeated: an engine whose resume failed once stays out, where it was paused still.

Met in https://github.com/PrimeIntellect-ai/prime-rl/pull/2815.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl, PushReport, generation


async def _resume(engine: EngineControl, report: PushReport | None = None) -> None:
    await generation._resume_and_read_back(engine)


def build(context: TargetContext) -> ResyncTarget:
    put(generation, "_resume", _resume)
    return build_good(context)
