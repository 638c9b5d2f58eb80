"""Flush skipped: cached prefixes of the old weights are used on under the new ones."""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl


async def _flush(engine: EngineControl) -> None:
    """Leave the cache."""


def build(context: TargetContext) -> ResyncTarget:
    put(EngineControl, "flush", _flush)
    return build_good(context)
