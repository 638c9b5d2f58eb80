"""A limit of its own: a request gets less time than it was given, and slow counts as lost."""

from __future__ import annotations

from typing import Any

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync.line import Line
from resync.wire import Answer

OWN_LIMIT_S = 0.3

_exchange = Line._exchange


async def _hurry(
    line: Line, action: str, method: str, path: str, body: Any, limit_s: float
) -> Answer:
    return await _exchange(line, action, method, path, body, min(limit_s, OWN_LIMIT_S))


def build(context: TargetContext) -> ResyncTarget:
    put(Line, "_exchange", _hurry)
    return build_good(context)
