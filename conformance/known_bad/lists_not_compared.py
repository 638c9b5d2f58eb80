"""Engine lists not compared: each rank connects to the engines that it was told of.

Met in https://github.com/radixark/miles/pull/947.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Agreement


def _agree(agreement: Agreement, value: int) -> bool:
    return True


def build(context: TargetContext) -> ResyncTarget:
    put(Agreement, "same_everywhere", _agree)
    return build_good(context)
