"""No time-out on the rendezvous: the trainer's end of the channel is waited for, however long.

Met in https://github.com/verl-project/verl/issues/6967.
"""

from __future__ import annotations

import queue
from typing import Any

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Channel, TrainerEngine

_opened = Channel._opened


def _wait(channel: Channel, results: queue.SimpleQueue[Any]) -> TrainerEngine:
    results.put(results.get())
    return _opened(channel, results)


def build(context: TargetContext) -> ResyncTarget:
    put(Channel, "_opened", _wait)
    return build_good(context)
