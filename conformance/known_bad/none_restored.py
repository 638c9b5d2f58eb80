"""None restored: a push that could not pause every engine leaves those paused that it could.

Met in https://github.com/PrimeIntellect-ai/prime-rl/pull/2815.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Fleet, updater


def _restore(fleet: Fleet) -> None:
    """Leave them."""


def build(context: TargetContext) -> ResyncTarget:
    put(updater, "restore", _restore)
    return build_good(context)
