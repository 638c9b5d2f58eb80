"""vLLM's NCCL and IPC worker engines on a GPU: only the fault points are added.

The rendezvous has vLLM's own limit of 300 s (``distributed/utils.py`` 471), whatever the scenario
says.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.weight_transfer import ipc_engine, nccl_common, nccl_engine

from vllm_engine.backends import FaultPoints


class CudaNcclWeightTransferEngine(FaultPoints, nccl_engine.NCCLWeightTransferEngine):  # type: ignore[misc]
    """vLLM's engine, which joins the trainer's NCCL communicator."""

    def open_channel(self, init_info: nccl_common.NCCLWeightTransferInitInfo) -> None:
        """Join the communicator.

        Raises:
            RuntimeError: NCCL cannot be loaded; vLLM would receive nothing, and answer 200
                (``pynccl.py`` 127-138 and 539).
        """
        nccl_engine.NCCLWeightTransferEngine.init_transfer_engine(self, init_info)
        group = self.model_update_group
        if group.disabled:
            raise RuntimeError(
                "expected an NCCL communicator, found one that receives nothing. See that libnccl "
                "can be loaded and VLLM_DISABLE_PYNCCL is not set."
            )
        broadcast = group.broadcast

        def visited(tensor: torch.Tensor, src: int, stream: Any = None) -> None:
            if self.visits is not None:
                self.visits.receive()
            broadcast(tensor, src, stream)

        group.broadcast = visited


class CudaIpcWeightTransferEngine(FaultPoints, ipc_engine.IPCWeightTransferEngine):  # type: ignore[misc]
    """vLLM's engine, which maps the memory of the rank on its GPU."""

    def open_channel(self, init_info: ipc_engine.IPCWeightTransferInitInfo) -> None:
        """Note whether the trainer packs; there is no rendezvous."""
        ipc_engine.IPCWeightTransferEngine.init_transfer_engine(self, init_info)
