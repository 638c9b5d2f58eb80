"""Version from the counter: what the trainer counts is compared, not what the engine shows.

Met in https://github.com/lightseekorg/tokenspeed/issues/1373 as a 200 without any effect.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl, generation


async def _publish(engine: EngineControl, version: str) -> None:
    await engine.publish(version)
    if not await engine.is_paused():
        raise engine.found_running("read-back")
    engine.label = version


def build(context: TargetContext) -> ResyncTarget:
    put(generation, "_publish_and_read_back", _publish)
    return build_good(context)
