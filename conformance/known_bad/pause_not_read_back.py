"""Pause state not read back: an engine that was paused is taken to be paused still.

A resume that arrives late lets it generate while its weights are away.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl


async def _believe(engine: EngineControl, action: str) -> None:
    """Do not look."""


def build(context: TargetContext) -> ResyncTarget:
    put(EngineControl, "require_paused", _believe)
    return build_good(context)
