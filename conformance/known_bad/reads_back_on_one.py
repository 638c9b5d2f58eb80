"""Version checked on one engine only: the others are taken to show what was published."""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl, generation

_publish_and_read_back = generation._publish_and_read_back


async def _publish(engine: EngineControl, version: str) -> None:
    if engine.index == 0:
        await _publish_and_read_back(engine, version)
        return
    await engine.publish(version)
    engine.label = version


def build(context: TargetContext) -> ResyncTarget:
    put(generation, "_publish_and_read_back", _publish)
    return build_good(context)
