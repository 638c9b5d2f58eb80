"""Quarantined engine resumed too: the last step is for every engine, not for those of the push.

One that could not be cleaned up generates from what a failed update has left.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Fleet, PushReport, generation, updater
from resync.agreement import Code


def _resume(fleet: Fleet, report: PushReport) -> Code:
    aside = {engine: engine.quarantined for engine in fleet.engines}
    for engine in fleet.engines:
        engine.quarantined = None
    try:
        generation.resume(fleet, report)
    finally:
        for engine, why in aside.items():
            engine.quarantined = why
    return Code.OK if fleet.active == fleet.engines else Code.DEGRADED


def build(context: TargetContext) -> ResyncTarget:
    put(updater, "resume", _resume)
    return build_good(context)
