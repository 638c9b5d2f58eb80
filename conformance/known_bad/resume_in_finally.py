"""The good updater, in a ``finally`` that resumes generation whatever happened."""

from __future__ import annotations

from collections.abc import Mapping

from harness.contracts import Json, TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineControl, Fleet, PushTimeouts


class ResumeInFinally:
    def __init__(self, context: TargetContext, good: ResyncTarget) -> None:
        self._good = good
        self._fleet: Fleet | None = None
        if context.rank == 0:
            timeouts = PushTimeouts(request_s=context.timeouts.request_s)
            self._fleet = Fleet({engine.index: engine.url for engine in context.engines}, timeouts)

    def connect(self) -> Mapping[str, Json]:
        return self._good.connect()

    def push(self) -> Mapping[str, Json]:
        try:
            return self._good.push()
        finally:
            if self._fleet is not None:
                self._fleet.each(EngineControl.resume)

    def version(self) -> str:
        return self._good.version()

    def close(self) -> None:
        self._good.close()
        if self._fleet is not None:
            self._fleet.close()


def build(context: TargetContext) -> ResumeInFinally:
    return ResumeInFinally(context, build_good(context))
