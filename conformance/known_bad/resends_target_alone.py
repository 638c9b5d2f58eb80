"""Target resent without the draft: the second attempt ends after the target model.

Met in https://github.com/sgl-project/sglang/issues/27718 as one model of two that is not updated.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import AttemptReport, EngineControl, resend

_transfer = resend._transfer


def _send(sender: resend.Sender, attempt: AttemptReport, *, draft: bool, verify: bool) -> None:
    if draft and attempt.number > 1:
        sender.on_engines(EngineControl.finish)
        return
    _transfer(sender, attempt, draft=draft, verify=verify)


def build(context: TargetContext) -> ResyncTarget:
    put(resend, "_transfer", _send)
    return build_good(context)
