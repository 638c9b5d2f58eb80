"""Readmitted without a new channel: an engine that is back from quarantine gets the next update.

It is no member of the channel that the push goes over.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Fleet, generation, quarantine


def _readmit(fleet: Fleet) -> list[int]:
    quarantine.readmit(fleet)
    return []


def build(context: TargetContext) -> ResyncTarget:
    put(generation, "readmit", _readmit)
    return build_good(context)
