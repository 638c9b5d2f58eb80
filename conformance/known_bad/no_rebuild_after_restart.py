"""No new channel after a restart: an engine with a label that is not ours is taken as it is.

The push is sent over a channel that the engine's new process never joined.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Fleet, generation, updater


def _quiesce(fleet: Fleet, *, quarantines: bool = False) -> None:
    generation.quiesce(fleet, quarantines=quarantines)
    fleet.must_rejoin = False


def build(context: TargetContext) -> ResyncTarget:
    put(updater, "quiesce", _quiesce)
    return build_good(context)
