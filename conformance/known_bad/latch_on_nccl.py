"""Latch on NCCL: a refused update is noted for later, as on IPC, and the sender goes on.

It broadcasts to engines that do not receive. Met in https://github.com/huggingface/trl/issues/6796
as a trainer inside a broadcast that nobody can interrupt.
"""

from __future__ import annotations

from dataclasses import replace

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Channel, policy


def _note(channel: Channel, error: Exception) -> None:
    channel.broken = True


def build(context: TargetContext) -> ResyncTarget:
    put(policy, "POLICIES", {**policy.POLICIES, "nccl": replace(policy.NCCL, latch=True)})
    put(Channel, "_drop_own_end", _note)
    return build_good(context)
