"""None paused again: where one engine cannot be resumed, the others go on generating."""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Fleet, updater


def _pause_again(fleet: Fleet) -> None:
    """Leave them."""


def build(context: TargetContext) -> ResyncTarget:
    put(updater, "pause_again", _pause_again)
    return build_good(context)
