"""No resend: the first failure of an attempt ends the push."""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import resend


def build(context: TargetContext) -> ResyncTarget:
    put(resend, "MAX_ATTEMPTS", 1)
    return build_good(context)
