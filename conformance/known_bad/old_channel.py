"""Old channel: the resend goes over the channel of the attempt that failed, on its old port.

Its communicator was aborted, or an engine is no member of it any more.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Channel

_open = Channel.open


def _open_once(channel: Channel) -> None:
    if channel.trainer is None:
        _open(channel)
    channel.broken = False


def build(context: TargetContext) -> ResyncTarget:
    put(Channel, "open", _open_once)
    return build_good(context)
