"""Agreement skipped on one rank: where its own pass went well, rank 1 goes on without the others.

It then meets them one step later, and waits at the end for an agreement that nobody enters.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync.agreement import Code, Decision
from resync.steps import Steps, Work

_on_every_rank = Steps.on_every_rank


def _skip(steps: Steps, step: str, work: Work) -> Decision:
    if steps._rank != 1 or step != "transfer":
        return _on_every_rank(steps, step, work)
    return Decision(work() or Code.OK)


def build(context: TargetContext) -> ResyncTarget:
    put(Steps, "on_every_rank", _skip)
    return build_good(context)
