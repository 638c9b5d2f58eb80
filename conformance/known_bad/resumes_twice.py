"""Resumes twice: a resume whose answer is lost is sent again, without a look at the state.

Met in https://github.com/vllm-project/vllm/pull/55229 as a second resume that engines do not come
back from.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl, EngineError, Fleet, PushReport, updater
from resync.agreement import Code


def _resume(fleet: Fleet, report: PushReport) -> Code:
    async def resume_one(engine: EngineControl) -> None:
        try:
            await engine.resume()
        except EngineError:
            report.retries += 1
            await engine.resume()

    fleet.each(resume_one)
    return Code.OK if fleet.active == fleet.engines else Code.DEGRADED


def build(context: TargetContext) -> ResyncTarget:
    put(updater, "resume", _resume)
    return build_good(context)
