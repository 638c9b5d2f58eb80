"""Bytes counted twice: what the second attempt reports includes what the first one sent."""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import ResumableWeightSource


def _begin_pass(source: ResumableWeightSource) -> None:
    source._live = None
    source._complete = False


def build(context: TargetContext) -> ResyncTarget:
    put(ResumableWeightSource, "begin_pass", _begin_pass)
    return build_good(context)
