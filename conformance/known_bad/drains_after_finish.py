"""Drains after a failed finish: the pass is complete by then, and the sender runs another one.

A recovery that always runs a pass does it, since only a finish fails that late.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import ResumableWeightSource

_finish = ResumableWeightSource.finish_pass


def _finish_whatever(source: ResumableWeightSource) -> None:
    if source._complete:
        source.begin_pass()
    _finish(source)


def build(context: TargetContext) -> ResyncTarget:
    put(ResumableWeightSource, "finish_pass", _finish_whatever)
    return build_good(context)
