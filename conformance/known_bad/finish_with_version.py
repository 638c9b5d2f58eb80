"""Finish with a version: each engine's finish publishes, before all ranks agree on the pass.

Where another engine's session fails, one shows the new version already: vLLM's finish takes one.
Met in https://github.com/lightseekorg/tokenspeed/pull/672.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl
from resync.engine_control import Session


def build(context: TargetContext) -> ResyncTarget:
    target = build_good(context)

    async def finish(engine: EngineControl) -> None:
        version = str(target._updater.weight_version + 1)
        engine.expected_labels |= {version}
        try:
            await engine.replies.operate(
                "finish", "/finish_weight_update", {"weight_version": version}
            )
        except BaseException:
            engine._failed(Session.FINISH_FAILED)
            raise
        engine.session = Session.CLOSED

    put(EngineControl, "finish", finish)
    return target
