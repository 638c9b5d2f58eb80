"""Readmitted without the model: an engine that answers again is published and resumed at once.

It serves what it was started with under the new version. Met in
https://github.com/radixark/miles/issues/1724.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl, Fleet, PushReport, generation, quarantine, updater


def _later(fleet: Fleet) -> list[int]:
    return []


def _publish(fleet: Fleet, version: str, report: PushReport) -> None:
    back = set(quarantine.readmit(fleet))
    come_back = [engine for engine in fleet.active if engine.index in back]
    fleet.each(EngineControl.pause, engines=come_back)
    generation.publish(fleet, version, report)


def build(context: TargetContext) -> ResyncTarget:
    put(generation, "readmit", _later)
    put(updater, "publish", _publish)
    return build_good(context)
