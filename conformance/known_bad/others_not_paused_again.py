"""Others not paused again: where a resume fails, only its own sender's engines are paused again.

Those of the other senders go on generating beside engines that stand.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Fleet, FleetError, PushReport, generation, updater
from resync.agreement import Code


def build(context: TargetContext) -> ResyncTarget:
    failed: list[Fleet] = []

    def resume(fleet: Fleet, report: PushReport) -> Code:
        try:
            return generation.resume(fleet, report)
        except FleetError:
            failed.append(fleet)
            raise

    def pause_again(fleet: Fleet) -> None:
        if fleet in failed:
            generation.pause_again(fleet)

    put(updater, "resume", resume)
    put(updater, "pause_again", pause_again)
    return build_good(context)
