"""Cleans up a running engine: it is not paused again before a failed attempt is closed.

One that somebody resumed runs on, and is never brought back.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl, resend

_clean_up = resend._clean_up
_pause = EngineControl.pause


async def _no_pause(engine: EngineControl) -> None:
    """Leave it as it is."""


def _as_it_is(sender: resend.Sender, *, accept_labels: bool = False) -> None:
    put(EngineControl, "pause", _no_pause)
    try:
        _clean_up(sender, accept_labels=accept_labels)
    finally:
        put(EngineControl, "pause", _pause)


def build(context: TargetContext) -> ResyncTarget:
    put(resend, "_clean_up", _as_it_is)
    return build_good(context)
