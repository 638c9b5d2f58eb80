"""Expected label not checked: an engine that shows somebody else's label before the commit is fine.

Another trainer's weights, or a restarted engine's, are published as ours.
"""

from __future__ import annotations

import asyncio

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl, resend


async def _verify(engine: EngineControl) -> None:
    _, paused = await asyncio.gather(engine.probe(), engine.is_paused())
    if not paused:
        raise engine.found_running("verify")


def build(context: TargetContext) -> ResyncTarget:
    put(resend, "_verify", _verify)
    return build_good(context)
