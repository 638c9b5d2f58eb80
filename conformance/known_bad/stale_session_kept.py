"""Stale session kept: engines are taken to be as a trainer leaves them when nothing went wrong.

A session that the trainer before left open refuses the first start. Met in
https://github.com/huggingface/trl/pull/5892.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl
from resync.engine_control import Session


def _found(*, paused: bool) -> Session:
    return Session.CLOSED


def build(context: TargetContext) -> ResyncTarget:
    put(EngineControl, "session_found", staticmethod(_found))
    return build_good(context)
