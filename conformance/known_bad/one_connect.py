"""No second connect: a port that is taken, or an engine that refuses once, ends the job.

Met in https://github.com/pytorch/pytorch/issues/191560 as a retry that never runs.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import updater


def build(context: TargetContext) -> ResyncTarget:
    put(updater, "CONNECT_ATTEMPTS", 1)
    return build_good(context)
