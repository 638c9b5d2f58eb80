"""vLLM's IPC worker engine over shared memory: its receive code, with our handles.

On the wire a handle is the JSON that `fakes.data_plane.shared_memory` exports, one for each GPU's
identity (``GPU-<n>``). vLLM's code expects the arguments of torch's ``rebuild_cuda_tensor`` in its
place: a tuple whose entry 6 is the device, which it overwrites.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.multiprocessing.reductions
import vllm.distributed.weight_transfer.ipc_engine as ipc_engine

from fakes.data_plane.shared_memory import open_handle
from harness.contracts import Json
from vllm_engine import agent
from vllm_engine.backends import FaultPoints

Arguments = tuple[Any, ...]  # handle as JSON, dtype's name or None, shape, 3 unused, device


class SharedMemoryWeightTransferEngine(FaultPoints, ipc_engine.IPCWeightTransferEngine):  # type: ignore[misc]
    """Maps the trainer's shared memory where vLLM's maps CUDA IPC memory."""

    def open_channel(self, init_info: ipc_engine.IPCWeightTransferInitInfo) -> None:
        """Note whether the trainer packs; there is no rendezvous."""
        ipc_engine.IPCWeightTransferEngine.init_transfer_engine(self, init_info)

    def receive_weights(self, update_info: ipc_engine.IPCWeightTransferUpdateInfo) -> None:
        """Load one update; the payload's handles become what vLLM's code takes."""
        handles = update_info.ipc_handles
        if isinstance(handles, dict):
            update_info.ipc_handles = _arguments(handles, None, ())
        elif isinstance(handles, list):
            update_info.ipc_handles = [
                _arguments(*each)
                for each in zip(handles, update_info.dtype_names, update_info.shapes, strict=True)
            ]
        super().receive_weights(update_info)


def _arguments(
    handles: Mapping[str, Json], dtype_name: str | None, shape: list[int] | tuple[()]
) -> dict[str, Arguments]:
    return {
        uuid: (json.dumps(handle), dtype_name, tuple(shape), None, None, None, None)
        for uuid, handle in handles.items()
    }


def _rebuild(handle: str, dtype_name: str | None, shape: tuple[int, ...], *_: Any) -> torch.Tensor:
    """Map one export; it aliases the trainer's memory, as a CUDA IPC mapping does."""
    memory = open_handle(json.loads(handle))
    return memory if dtype_name is None else memory.view(getattr(torch, dtype_name)).view(shape)


def _device_properties(device: object = None) -> SimpleNamespace:
    """Return the identity by which this worker finds its own handle."""
    own = agent.current()
    offset = 0 if own is None or own.scenario is None else own.scenario.gpu_offset
    return SimpleNamespace(uuid=f"GPU-{offset + (0 if own is None else own.rank)}")


# What vLLM's receive code asks of CUDA; this module is imported in CPU workers of the harness only.
ipc_engine.rebuild_cuda_tensor = _rebuild
torch.multiprocessing.reductions.rebuild_cuda_tensor = _rebuild
torch.cuda.get_device_properties = _device_properties  # type: ignore[assignment]
