"""Resume not read back: an engine that answers 200 is taken to generate again."""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl, generation


async def _believe(engine: EngineControl) -> None:
    await engine.resume()


def build(context: TargetContext) -> ResyncTarget:
    put(generation, "_resume_and_read_back", _believe)
    return build_good(context)
