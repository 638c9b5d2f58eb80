"""Agrees before the pass ends: the sender says that it failed, and then completes its pass.

The other ranks are in its gathers until then, and it waits for them in the agreement.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import ResumableWeightSource
from resync.agreement import Decision
from resync.steps import Steps, Work

_finish_pass = ResumableWeightSource.finish_pass
_on_every_rank = Steps.on_every_rank


def build(context: TargetContext) -> ResyncTarget:
    unfinished: list[ResumableWeightSource] = []

    def finish_after(steps: Steps, step: str, work: Work) -> Decision:
        decision = _on_every_rank(steps, step, work)
        while unfinished:
            _finish_pass(unfinished.pop())
        return decision

    put(Steps, "on_every_rank", finish_after)
    target = build_good(context)
    put(target._updater.source, "finish_pass", lambda: unfinished.append(target._updater.source))
    return target
