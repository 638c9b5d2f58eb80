"""vLLM's NCCL worker engine over gloo: all of its receive code, but the communicator is ours."""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

from fakes.data_plane.nccl_like import NcclLikeCommunicator
from harness.contracts import no_record
from vllm_engine import agent
from vllm_engine.backends import FaultPoints

SENDER = 0  # group rank; the workers follow it

# The packed receive code asks which GPU it is on, to keep one set of streams each. Streams are
# no-ops on a CPU (``vllm.v1.worker.cpu.shm``), but without a GPU the question itself raises.
torch.accelerator.current_device_index = lambda: 0


class GlooWeightTransferEngine(FaultPoints, NCCLWeightTransferEngine):  # type: ignore[misc]
    """Joins the trainer's gloo group where vLLM's joins an NCCL communicator."""

    def open_channel(self, init_info: NCCLWeightTransferInitInfo) -> None:
        """Join the group, within the scenario's rendezvous time-out.

        Raises:
            Exception: the trainer was not reached in time.
        """
        # Before the rendezvous, as in vLLM: a failed one leaves new flags with the old channel.
        self.packed = init_info.packed
        self.packed_buffer_size_bytes = init_info.packed_buffer_size_bytes
        self.packed_num_buffers = init_info.packed_num_buffers
        if init_info.nccl_unique_id_b64:
            raise RuntimeError("failed to load the NCCL library for unique-id rendezvous")
        own, parallel = agent.current(), self.parallel_config
        scenario = None if own is None else own.scenario
        rank_in_fleet = parallel.data_parallel_index * parallel.world_size + parallel.rank
        communicator = NcclLikeCommunicator(
            master_address=init_info.master_address,
            master_port=init_info.master_port,
            rank=rank_in_fleet + init_info.rank_offset,
            world_size=init_info.world_size,
            rendezvous_s=agent.RENDEZVOUS_S if scenario is None else scenario.rendezvous_s,
            record=no_record if scenario is None else scenario.record,
        )
        self.model_update_group = _Receiver(communicator, self)


class _Receiver:
    """The worker's end of the group, with the two methods that vLLM's receive code calls."""

    def __init__(self, communicator: NcclLikeCommunicator, engine: FaultPoints) -> None:
        self._communicator = communicator
        self._engine = engine

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        """Receive one tensor, or one packed chunk; blocks until it is there.

        On a GPU the load is enqueued behind the broadcast; a CPU has to wait for it.
        """
        assert src == SENDER
        if self._engine.visits is not None:
            self._engine.visits.receive()
        self._communicator.broadcast(tensor, src)
        self._communicator.synchronize()

    def destroy(self) -> None:
        """Leave the group; the trainer does not notice."""
        self._communicator.destroy()
