"""Second failure swallowed: the resend is taken to have worked, and the version is published.

Met in https://github.com/radixark/miles/issues/1731 as errors that were logged, after which the
version was published and generation resumed.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Cause, PushReport, send_weights_with_resync, updater
from resync.resend import Sender
from resync.steps import Steps


def _send(sender: Sender, steps: Steps, report: PushReport) -> tuple[Cause, ...]:
    send_weights_with_resync(sender, steps, report)
    return ()


def build(context: TargetContext) -> ResyncTarget:
    put(updater, "send_weights_with_resync", _send)
    return build_good(context)
