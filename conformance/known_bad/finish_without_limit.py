"""No time-out on one request: a finish is waited for as long as the engine takes.

Met in https://github.com/PrimeIntellect-ai/prime-rl/pull/2230 as a socket that stays open while
nobody answers.
"""

from __future__ import annotations

from typing import Any

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync.line import Line
from resync.wire import Answer

FOR_EVER_S = 1e9

_exchange = Line._exchange


async def _wait(
    line: Line, action: str, method: str, path: str, body: Any, limit_s: float
) -> Answer:
    limit_s = FOR_EVER_S if action == "finish" else limit_s
    return await _exchange(line, action, method, path, body, limit_s)


def build(context: TargetContext) -> ResyncTarget:
    put(Line, "_exchange", _wait)
    return build_good(context)
