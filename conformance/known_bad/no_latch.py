"""No latch on IPC: the sender raises at the first failed update, as on NCCL.

The other ranks wait for it in the barrier behind the chunk. Met in
https://github.com/NovaSky-AI/SkyRL/pull/1737.
"""

from __future__ import annotations

from dataclasses import replace

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import policy


def build(context: TargetContext) -> ResyncTarget:
    put(policy, "POLICIES", {**policy.POLICIES, "ipc": replace(policy.IPC, latch=False)})
    return build_good(context)
