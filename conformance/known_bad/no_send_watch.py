"""No send watch: nothing bounds a broadcast once every engine has answered its update.

An engine that said yes to tensors that it did not receive keeps the sender for ever. Met in
https://github.com/vllm-project/vllm/pull/57022.
"""

from __future__ import annotations

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync.send_watch import SendWatch


def _arm(watch: SendWatch, since: str) -> None:
    """Expect nothing."""


def build(context: TargetContext) -> ResyncTarget:
    put(SendWatch, "arm", _arm)
    return build_good(context)
