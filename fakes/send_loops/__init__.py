"""Trainer engines with vLLM's shape, one module for each transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from fakes.send_loops.expert import open_expert
from fakes.send_loops.ipc import IpcTrainerEngine, open_ipc
from fakes.send_loops.nccl import NcclTrainerEngine, open_nccl
from fakes.send_loops.protocols import WeightSource, WeightSyncClient
from fakes.send_loops.settings import ChannelSettings, Slot

__all__ = [
    "TRANSPORTS",
    "ChannelSettings",
    "Slot",
    "find_opener",
    "open_channel",
    "open_ipc",
    "open_nccl",
]

Opener = TypeVar("Opener")

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
    if settings.slot is not None:
        return open_expert(settings, client, source)
    return find_opener(TRANSPORTS, settings.transport)(settings, client, source)


def find_opener(openers: Mapping[str, Opener], transport: str) -> Opener:
    """Return the opener of one transport.

    Raises:
        ValueError: unknown transport.
    """
    if transport not in openers:
        raise ValueError(f"transport: expected one of {sorted(openers)}, found {transport!r}.")
    return openers[transport]
