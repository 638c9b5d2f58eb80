"""The best outcome wins, as under a MAX reduction: one rank that is fine decides for all."""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync.agreement import Code, Decision
from resync.steps import Steps, Work

_on_every_rank = Steps.on_every_rank


def build(context: TargetContext) -> ResyncTarget:
    def decide(steps: Steps, step: str, work: Work) -> Decision:
        decision = _on_every_rank(steps, step, work)
        failed = {cause.rank for cause in decision.causes}
        is_fine_somewhere = len(failed) < context.world_size
        return Decision(Code.OK) if not decision.ok and is_fine_somewhere else decision

    put(Steps, "on_every_rank", decide)
    return build_good(context)
