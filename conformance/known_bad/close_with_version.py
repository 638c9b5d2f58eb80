"""Close with a version: the finish that closes a failed attempt's session carries the version.

The engine then shows a version that it does not have. Met in
https://github.com/lightseekorg/tokenspeed/pull/672.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl

_close_session = EngineControl.close_session


def build(context: TargetContext) -> ResyncTarget:
    target = build_good(context)
    updater = target._updater

    async def close_session(engine: EngineControl, *, has_draft: bool) -> None:
        operate = engine.replies.operate

        async def with_version(
            action: str, path: str, body: object = None, limit_s: float | None = None
        ) -> None:
            if action == "finish":
                body = {"weight_version": str(updater.weight_version + 1)}
            await operate(action, path, body, limit_s)

        put(engine.replies, "operate", with_version)
        try:
            await _close_session(engine, has_draft=has_draft)
        finally:
            put(engine.replies, "operate", operate)

    put(EngineControl, "close_session", close_session)
    return target
