"""Quarantines what is only late: an engine that does not answer in time is left out at once.

The push does not wait until it has come to rest.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync.errors import EngineStuck
from resync.line import Line


async def _give_up(line: Line, action: str = "idle") -> None:
    if line.late is not None and line.stuck is None:
        line.stuck = f"{line.late.action} got no answer within {line.late.limit_s:g} s. Restart it"
    if line.stuck is not None:
        raise EngineStuck(line.index, action, line.stuck)


def build(context: TargetContext) -> ResyncTarget:
    put(Line, "until_idle", _give_up)
    return build_good(context)
