"""Session left open on raise: nothing is closed after the last attempt has failed.

Met in https://github.com/huggingface/trl/pull/5892.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import resend

_clean_up = resend._clean_up


def _between_attempts(sender: resend.Sender, *, accept_labels: bool = False) -> None:
    if accept_labels:
        _clean_up(sender, accept_labels=True)


def build(context: TargetContext) -> ResyncTarget:
    put(resend, "_clean_up", _between_attempts)
    return build_good(context)
