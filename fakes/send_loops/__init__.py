"""Trainer engines with vLLM's shape, one module for each transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fakes.send_loops.ipc import IpcTrainerEngine, open_ipc
from fakes.send_loops.nccl import NcclTrainerEngine, open_nccl
from fakes.send_loops.protocols import WeightSource, WeightSyncClient
from fakes.send_loops.settings import ChannelSettings

__all__ = ["TRANSPORTS", "ChannelSettings", "open_channel", "open_ipc", "open_nccl"]

TrainerEngineOpener = Callable[
    [ChannelSettings, WeightSyncClient, WeightSource], NcclTrainerEngine | IpcTrainerEngine
]

TRANSPORTS: Mapping[str, TrainerEngineOpener] = {"nccl": open_nccl, "ipc": open_ipc}


def open_channel(
    settings: ChannelSettings, client: WeightSyncClient, source: WeightSource
) -> NcclTrainerEngine | IpcTrainerEngine:
    """Open a fresh channel; called on every trainer rank.

    Raises:
        ValueError: unknown transport.
        Exception: the channel could not be opened.
    """
    if settings.transport not in TRANSPORTS:
        raise ValueError(
            f"transport: expected one of {sorted(TRANSPORTS)}, found {settings.transport!r}."
        )
    return TRANSPORTS[settings.transport](settings, client, source)
