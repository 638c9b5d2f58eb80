"""Draft flag left set: it is cleared after a draft session that went well, and only then.

The resend's target pass carries the draft model.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import AttemptReport, ResumableWeightSource, resend

_transfer = resend._transfer


def _draft(source: ResumableWeightSource) -> bool:
    return bool(getattr(source.inner, "draft", False))


def _set_draft(source: ResumableWeightSource, value: bool) -> None:
    """Set it, and let only `_send` clear it."""
    if value:
        put(source.inner, "draft", True)


def _send(sender: resend.Sender, attempt: AttemptReport, *, draft: bool, verify: bool) -> None:
    _transfer(sender, attempt, draft=draft, verify=verify)
    if sender.has_draft:
        put(sender.source.inner, "draft", False)


def build(context: TargetContext) -> ResyncTarget:
    put(ResumableWeightSource, "draft", property(_draft, _set_draft))
    put(resend, "_transfer", _send)
    return build_good(context)
