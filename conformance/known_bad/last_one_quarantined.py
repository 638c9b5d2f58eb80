"""The last one quarantined: a push that no engine takes part in any more counts as degraded."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import EngineError, Fleet, generation, resend


def _set_aside(fleet: Fleet, failures: Sequence[EngineError]) -> None:
    for failure in failures:
        fleet.engines[failure.engine].quarantined = str(failure)


def build(context: TargetContext) -> ResyncTarget:
    for module in (generation, resend):
        put(module, "set_aside", _set_aside)
    return build_good(context)
