"""Probe passed over: what the workers' replies say before the commit is not looked at."""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl


async def _probe(engine: EngineControl) -> None:
    """Ask nothing."""


def build(context: TargetContext) -> ResyncTarget:
    put(EngineControl, "probe", _probe)
    return build_good(context)
