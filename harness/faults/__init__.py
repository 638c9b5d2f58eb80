"""The fault kinds, one file each. A new kind is one file, one line in `FAULTS` and one test."""

from __future__ import annotations

from harness.faults.disconnect import Disconnect
from harness.faults.freeze import Freeze
from harness.faults.gil import Gil
from harness.faults.hang import Hang
from harness.faults.kill import Kill
from harness.faults.kind import FaultKind
from harness.faults.lie import Lie
from harness.faults.lock import Lock
from harness.faults.loop import Loop
from harness.faults.port_taken import PortTaken
from harness.faults.raise_ import Raise
from harness.faults.reject import Reject
from harness.faults.reply_lost import ReplyLost
from harness.faults.request_lost import RequestLost
from harness.faults.slow import Slow
from harness.faults.stale_engines import StaleEngines
from harness.faults.stale_version import StaleVersion
from harness.faults.swallow import Swallow

FAULTS: dict[str, type[FaultKind]] = {
    "disconnect": Disconnect,
    "freeze": Freeze,
    "gil": Gil,
    "hang": Hang,
    "kill": Kill,
    "lie": Lie,
    "lock": Lock,
    "loop": Loop,
    "port_taken": PortTaken,
    "raise": Raise,
    "reject": Reject,
    "reply_lost": ReplyLost,
    "request_lost": RequestLost,
    "slow": Slow,
    "stale_engines": StaleEngines,
    "stale_version": StaleVersion,
    "swallow": Swallow,
}
