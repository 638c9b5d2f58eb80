"""Flush not repeated: an engine that says it is busy fails the push.

Met in https://github.com/radixark/miles/pull/847.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl


async def _flush(engine: EngineControl) -> None:
    await engine.line.post("flush", "/reset_prefix_cache?reset_running_requests=false")


def build(context: TargetContext) -> ResyncTarget:
    put(EngineControl, "flush", _flush)
    return build_good(context)
