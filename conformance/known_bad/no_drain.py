"""No drain: a sender whose update failed leaves its pass and goes to the agreement.

The other ranks stay in a gather that it has left. Met in https://github.com/huggingface/trl/pull/6765
as ranks that run on, or crash, while others are inside a gather.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import ResumableWeightSource


def _finish_pass(source: ResumableWeightSource) -> None:
    """Leave the pass where it is."""


def build(context: TargetContext) -> ResyncTarget:
    put(ResumableWeightSource, "finish_pass", _finish_pass)
    return build_good(context)
