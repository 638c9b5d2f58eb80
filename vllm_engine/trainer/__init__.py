"""vLLM's own trainer engines on a rank without a GPU, over the data planes of the fakes.

Importing this package imports the transfer engines of vLLM, which takes seconds: let the launcher
preload it. Nothing of vLLM's is replaced before `open_channel` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fakes.send_loops import ChannelSettings, find_opener
from fakes.send_loops.protocols import WeightSource, WeightSyncClient
from vllm_engine.trainer.ipc import IpcTrainerEngine, open_ipc
from vllm_engine.trainer.nccl import NcclTrainerEngine, open_nccl

__all__ = ["TRANSPORTS", "open_channel", "open_ipc", "open_nccl"]

TrainerEngineOpener = Callable[
    [ChannelSettings, WeightSyncClient, WeightSource], NcclTrainerEngine | IpcTrainerEngine
]

TRANSPORTS: Mapping[str, TrainerEngineOpener] = {"nccl": open_nccl, "ipc": open_ipc}


def open_channel(
    settings: ChannelSettings, client: WeightSyncClient, source: WeightSource
) -> NcclTrainerEngine | IpcTrainerEngine:
    """Open a fresh channel, as `fakes.send_loops.open_channel` does; called on every trainer rank.

    Raises:
        ValueError: unknown transport.
        Exception: the channel could not be opened.
    """
    return find_opener(TRANSPORTS, settings.transport)(settings, client, source)
