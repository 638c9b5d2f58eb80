"""Peers not restored: where a pause or flush fails, only its own sender's engines run again.

Those that the other senders have paused stay so. Met in
https://github.com/NVIDIA-NeMo/RL/pull/3612.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Fleet, FleetError, generation, updater


def build(context: TargetContext) -> ResyncTarget:
    failed: list[Fleet] = []

    def quiesce(fleet: Fleet, *, quarantines: bool = False) -> None:
        try:
            generation.quiesce(fleet, quarantines=quarantines)
        except FleetError:
            failed.append(fleet)
            raise

    def restore(fleet: Fleet) -> None:
        if fleet in failed:
            generation.restore(fleet)

    put(updater, "quiesce", quiesce)
    put(updater, "restore", restore)
    return build_good(context)
