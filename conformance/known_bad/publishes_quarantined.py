"""Quarantined engine published too: one that was left out shows the version of the others.

It answers, but does not have the weights.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Fleet, PushReport, generation, updater


def _publish(fleet: Fleet, version: str, report: PushReport) -> None:
    aside = {engine: engine.quarantined for engine in fleet.engines}
    for engine in fleet.engines:
        engine.quarantined = None
    try:
        generation.publish(fleet, version, report)
    finally:
        for engine, why in aside.items():
            engine.quarantined = why


def build(context: TargetContext) -> ResyncTarget:
    put(updater, "publish", _publish)
    return build_good(context)
