"""Resends into an open session: nothing is closed, and a start that is refused counts as made.

A session that the failure ended is opened, one that it left open is used on. Met in
https://github.com/NovaSky-AI/SkyRL/issues/1605.
"""

from __future__ import annotations

import contextlib

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl, EngineRejected
from resync.engine_control import Session

_start = EngineControl.start


async def _leave(engine: EngineControl, *, has_draft: bool) -> None:
    """Close nothing."""


async def _start_or_go_on(engine: EngineControl, *, draft: bool = False) -> None:
    was_open = engine.session not in (Session.CLOSED, Session.UNKNOWN)
    with contextlib.suppress(*([EngineRejected] if was_open else [])):
        await _start(engine, draft=draft)
    engine.session, engine.session_is_draft = Session.OPEN, draft


def build(context: TargetContext) -> ResyncTarget:
    put(EngineControl, "close_session", _leave)
    put(EngineControl, "start", _start_or_go_on)
    return build_good(context)
