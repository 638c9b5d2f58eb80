"""Agrees on a failed gather: a rank whose weight source raised goes to the agreement.

The others are in the gather that it has left. Met in https://github.com/huggingface/trl/pull/6765.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import SourceFailed
from resync.agreement import Code, Decision
from resync.steps import Steps, Work

_on_every_rank = Steps.on_every_rank


def _agree(steps: Steps, step: str, work: Work) -> Decision:
    def work_or_say_no() -> Code | None:
        try:
            return work()
        except SourceFailed as error:
            raise RuntimeError(str(error)) from error

    return _on_every_rank(steps, step, work_or_say_no)


def build(context: TargetContext) -> ResyncTarget:
    put(Steps, "on_every_rank", _agree)
    return build_good(context)
