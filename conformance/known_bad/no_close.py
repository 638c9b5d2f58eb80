"""No close: the session of a failed attempt is left open, and the resend's start is refused.

Met in https://github.com/huggingface/trl/pull/6913.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl


async def _leave(engine: EngineControl, *, has_draft: bool) -> None:
    """Close nothing."""


def build(context: TargetContext) -> ResyncTarget:
    put(EngineControl, "close_session", _leave)
    return build_good(context)
