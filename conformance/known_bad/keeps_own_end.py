"""Keeps its end: when an update has failed, the sender's end of the NCCL channel is not dropped.

A sender that is inside a broadcast then, or that has to wait for a buffer, never comes back. Met in
https://github.com/huggingface/trl/pull/6913.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Channel


def _keep(channel: Channel, error: Exception) -> None:
    channel.broken = True


def build(context: TargetContext) -> ResyncTarget:
    put(Channel, "_drop_own_end", _keep)
    return build_good(context)
