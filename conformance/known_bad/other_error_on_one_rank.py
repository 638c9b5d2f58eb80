"""One rank raises a different error: rank 1 does not say what failed on the engines."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Cause, PushReport, WeightUpdater

_fail = WeightUpdater._fail


def _fail_its_own_way(
    updater: WeightUpdater, report: PushReport, what: str, causes: Sequence[Cause]
) -> None:
    if updater._rank == 1:
        raise RuntimeError("the weights could not be pushed")
    _fail(updater, report, what, causes)


def build(context: TargetContext) -> ResyncTarget:
    put(WeightUpdater, "_fail", _fail_its_own_way)
    return build_good(context)
