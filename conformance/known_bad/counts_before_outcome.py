"""Counter advanced before the outcome: a push that raises has taken a version all the same.

The next push skips one. Met in https://github.com/THUDM/slime/issues/2104 as a base that moved on
although nothing was applied.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import PushReport, WeightUpdater

_push = WeightUpdater.push


def _count_and_push(updater: WeightUpdater) -> PushReport:
    counted = updater.weight_version + 1
    try:
        return _push(updater)
    finally:
        updater.weight_version = counted


def build(context: TargetContext) -> ResyncTarget:
    put(WeightUpdater, "push", _count_and_push)
    return build_good(context)
