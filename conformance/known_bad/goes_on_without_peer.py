"""Goes on without a peer: an agreement that fails counts as a step that failed.

The ranks that are left clean up and send again, without the one that they need for a pass.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import PeerLost
from resync.agreement import Code, Decision
from resync.errors import Cause
from resync.steps import Steps, Work

_on_every_rank = Steps.on_every_rank


def _agree(steps: Steps, step: str, work: Work) -> Decision:
    try:
        return _on_every_rank(steps, step, work)
    except PeerLost as error:
        return Decision(Code.FAILED, tuple(Cause.of(error, rank=steps._rank, step=step)))


def build(context: TargetContext) -> ResyncTarget:
    put(Steps, "on_every_rank", _agree)
    return build_good(context)
