"""No scrub: after a failed update the session is only finished, if it is open still.

Layers that the update left half loaded are skipped by the next start, and shards of the resend are
lost in them. Met in https://github.com/vllm-project/vllm/pull/57854.
"""

from __future__ import annotations

import contextlib

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl, EngineRejected
from resync.engine_control import Session

_close_session = EngineControl.close_session


async def _close(engine: EngineControl, *, has_draft: bool) -> None:
    if engine.session is not Session.UPDATE_FAILED:
        await _close_session(engine, has_draft=has_draft)
        return
    with contextlib.suppress(EngineRejected):
        await engine.finish()
    engine.session = Session.CLOSED


def build(context: TargetContext) -> ResyncTarget:
    put(EngineControl, "close_session", _close)
    return build_good(context)
