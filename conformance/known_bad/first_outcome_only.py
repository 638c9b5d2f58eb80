"""First outcome only: a fan-out ends at the first failure, and gives the other requests up.

What they did is not known, and is not waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl, EngineError, Fleet
from resync.engine_control import engine_errors
from resync.fleet import Action


async def _each(
    fleet: Fleet, action: Action, engines: Sequence[EngineControl], coupled: bool
) -> list[EngineError]:
    results: list[BaseException | None] = []
    try:
        await asyncio.gather(*(action(engine) for engine in engines))
    except Exception as error:
        results.append(error)
    return engine_errors(results)


def build(context: TargetContext) -> ResyncTarget:
    put(Fleet, "_each", _each)
    return build_good(context)
