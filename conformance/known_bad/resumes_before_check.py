"""Resumes before the check: generation goes on, and only then is the version read back.

An engine that kept its old label serves new weights under it until the check is over.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl, EngineMismatch, generation


async def _publish(engine: EngineControl, version: str) -> None:
    await engine.publish(version)
    await engine.resume()
    found = await engine.version()
    if found != version:
        raise EngineMismatch(
            engine.index, "read-back", f"expected weight version {version}, found {found}"
        )


def build(context: TargetContext) -> ResyncTarget:
    put(generation, "_publish_and_read_back", _publish)
    return build_good(context)
