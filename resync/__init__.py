"""Weight pushes from a trainer to inference engines that fail safely on every rank.

Start with `WeightUpdater`; `add_timeout_arguments` adds its flags to a parser.
"""

from resync.agreement import Agreement
from resync.channel import Channel, TrainerEngine
from resync.client import WeightSyncClient
from resync.engine_control import EngineControl
from resync.errors import (
    Cause,
    ChannelError,
    ConnectFailed,
    EngineError,
    EngineLost,
    EngineMismatch,
    EngineNeedsRestart,
    EngineRejected,
    EngineStuck,
    EngineTimeout,
    FleetError,
    PeerLost,
    PushFailed,
    RankMustLeave,
    ResyncError,
    SendFailed,
    SourceFailed,
    UpdaterUnusable,
)
from resync.fleet import Fleet
from resync.observer import Observer
from resync.report import AttemptReport, Bytes, EngineReport, PushReport
from resync.resend import send_weights_with_resync
from resync.senders import PipelineStages
from resync.source import ResumableWeightSource, WeightSource
from resync.timeouts import (
    PushTimeouts,
    TimeoutOrderError,
    TimeoutOrderWarning,
    add_timeout_arguments,
    check_group_timeouts,
)
from resync.updater import WeightUpdater

__all__ = [
    "Agreement",
    "AttemptReport",
    "Bytes",
    "Cause",
    "Channel",
    "ChannelError",
    "ConnectFailed",
    "EngineControl",
    "EngineError",
    "EngineLost",
    "EngineMismatch",
    "EngineNeedsRestart",
    "EngineRejected",
    "EngineReport",
    "EngineStuck",
    "EngineTimeout",
    "Fleet",
    "FleetError",
    "Observer",
    "PeerLost",
    "PipelineStages",
    "PushFailed",
    "PushReport",
    "PushTimeouts",
    "RankMustLeave",
    "ResumableWeightSource",
    "ResyncError",
    "SendFailed",
    "SourceFailed",
    "TimeoutOrderError",
    "TimeoutOrderWarning",
    "TrainerEngine",
    "UpdaterUnusable",
    "WeightSource",
    "WeightSyncClient",
    "WeightUpdater",
    "add_timeout_arguments",
    "check_group_timeouts",
    "send_weights_with_resync",
]
