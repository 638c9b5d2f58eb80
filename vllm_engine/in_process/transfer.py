"""vLLM's IPC transfer engine over memory of this process.

``receive_weights`` is vLLM's own code object. Two names that it looks up are ours, because both
need a GPU: ``rebuild_cuda_tensor``, which here finds the tensor that a handle names, and
``torch.cuda.get_device_properties``, of which it reads the ``uuid``. Packed transfers are not
stood in for: they go through another module of vLLM.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from vllm.distributed.weight_transfer import ipc_engine


class Memory:
    """Tensors of the trainer, by handle. A handle survives JSON, as an IPC handle does."""

    def __init__(self) -> None:
        self._tensors: dict[int, torch.Tensor] = {}
        self._numbers = itertools.count()

    def export(self, tensor: torch.Tensor) -> list[int]:
        """Return the seven arguments that ``reduce_tensor`` would give; the first is the handle."""
        number = next(self._numbers)
        self._tensors[number] = tensor
        return [number, 0, 0, 0, 0, 0, 0]

    def rebuild(self, handle: int, *_: int) -> torch.Tensor:
        """Return the tensor itself: an imported handle aliases the trainer's memory, too."""
        return self._tensors[handle]


class IPCWeightTransferEngine(ipc_engine.IPCWeightTransferEngine):  # type: ignore[misc]
    """vLLM's engine, with the name that its messages give it.

    Args:
        memory: where the trainer's tensors are.
        gpu_uuid: which of the handles this worker can open.
        strike: called with the name of the RPC just before vLLM's own start and finish.
        arguments: of vLLM's own constructor.
    """

    def __init__(
        self, *arguments: Any, memory: Memory, gpu_uuid: str, strike: Callable[[str], None]
    ) -> None:
        super().__init__(*arguments)
        properties = SimpleNamespace(uuid=gpu_uuid)
        cuda = SimpleNamespace(get_device_properties=lambda _: properties)
        names: Mapping[str, Any] = vars(ipc_engine) | {
            "rebuild_cuda_tensor": memory.rebuild,
            "torch": SimpleNamespace(cuda=cuda),
        }
        receive = ipc_engine.IPCWeightTransferEngine.receive_weights
        self._receive = FunctionType(receive.__code__, dict(names))
        self._strike = strike

    def receive_weights(self, update_info: Any) -> None:
        self._strike("update_weights")
        self._receive(self, update_info)

    def start_weight_update(self) -> None:
        self._strike("start_weight_update")
        super().start_weight_update()

    def finish_weight_update(self) -> None:
        self._strike("finish_weight_update")
        super().finish_weight_update()
