"""Latch not reset: the client still holds the first attempt's failure when the resend begins.

It then sends nothing, and reports the old failure again.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import WeightSyncClient


def _begin_session(client: WeightSyncClient) -> None:
    client._session += 1


def build(context: TargetContext) -> ResyncTarget:
    put(WeightSyncClient, "begin_session", _begin_session)
    return build_good(context)
