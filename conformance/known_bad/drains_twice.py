"""Drains twice: after it has completed a pass that failed, the sender runs one more.

The other ranks are in the agreement by then. Two parts of a module that both clean up do it.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import ResumableWeightSource

_finish = ResumableWeightSource.finish_pass


def _finish_twice(source: ResumableWeightSource) -> None:
    is_whole = source._complete
    _finish(source)
    if not is_whole:
        source.begin_pass()
        _finish(source)


def build(context: TargetContext) -> ResyncTarget:
    put(ResumableWeightSource, "finish_pass", _finish_twice)
    return build_good(context)
