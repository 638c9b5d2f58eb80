"""No room check: an engine gets weights however many replies of its workers are unread.

After some more failures a worker waits for room for ever.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync.replies import Replies


async def _go_on(replies: Replies, action: str) -> None:
    """Do not count."""


def build(context: TargetContext) -> ResyncTarget:
    put(Replies, "require_room", _go_on)
    return build_good(context)
