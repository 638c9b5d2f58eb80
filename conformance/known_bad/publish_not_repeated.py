"""Publish not repeated: one answer that is lost leaves every engine paused."""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl, Fleet, PushReport, updater
from resync.generation import _publish_and_read_back


def _publish(fleet: Fleet, version: str, report: PushReport) -> None:
    async def publish_one(engine: EngineControl) -> None:
        await _publish_and_read_back(engine, version)

    fleet.each(publish_one)
    for engine in fleet.active:
        engine.expected_labels = frozenset({version})


def build(context: TargetContext) -> ResyncTarget:
    put(updater, "publish", _publish)
    return build_good(context)
