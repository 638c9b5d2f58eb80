"""vLLM's own IPC trainer engine, over shared memory.

``trainer_init``, ``send_weights``, ``_send_packed``, ``_send_unpacked``, ``_do_send`` and the
packed producer are vLLM's. What is replaced, by the line of ``ipc_engine.py`` or
``packed_tensor.py`` of vLLM 0.32.0 that uses it:

====================================  ======================================================
name                                  used at, and why it is replaced
====================================  ======================================================
``ipc_engine.torch``                  279 ``torch.accelerator.current_device_index``, 280
                                      ``torch.cuda.get_device_properties``, 352
                                      ``torch.cuda.synchronize``, 373
                                      ``torch.cuda.ipc_collect``: there is no GPU
                                      (`cpu.TORCH`)
the same                              351 and 372 ``torch.distributed.barrier``: torch's, but
                                      ``rank.barrier`` is reached before, and the journal told
``packed_tensor.torch``               342 ``torch.empty``, 365 and 386
                                      ``torch.cuda.current_stream``: there is no GPU
``ipc_engine.reduce_tensor``          398: there is no CUDA IPC; a handle to shared memory,
                                      with a copy of the tensor
``packed_tensor.reduce_tensor``       343: the same; the buffer itself is shared memory
``_all_gather_and_merge_handles``     401 and 418: vLLM's own, but a rank's handle first gets
(method)                              a name for each GPU that it stands for, as there may be
                                      fewer ranks than engine workers
``send_weights`` (method)             vLLM's own, in the thread's `seams.acting_for`; then the
                                      memory is freed, as dropping the last reference would
====================================  ======================================================

``rank.update_call`` is reached in the client.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from vllm.distributed.weight_transfer import ipc_engine, packed_tensor

from fakes.send_loops import ChannelSettings
from fakes.send_loops.ipc import Handles, own_gpus
from fakes.send_loops.protocols import WeightSource, WeightSyncClient
from vllm_engine.trainer import cpu, seams


class IpcTrainerEngine(ipc_engine.IPCTrainerWeightTransferEngine):  # type: ignore[misc]
    """vLLM's engine; made by `open_ipc`."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        channel = seams.acting()
        assert isinstance(channel, cpu.Channel)
        self._channel = channel

    def send_weights(self) -> None:
        """Push every tensor of the source; vLLM's own."""
        try:
            with seams.acting_for(self._channel):
                super().send_weights()
        finally:
            self._channel.memory.release_all()

    def _all_gather_and_merge_handles(self, handles: list[Handles]) -> list[Handles]:
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        gpus = own_gpus(self._channel.settings, world_size)
        merged: list[Handles] = super()._all_gather_and_merge_handles(
            [dict.fromkeys(gpus, handle[self.gpu_uuid]) for handle in handles]
        )
        return merged

    def shutdown(self) -> None:
        """Release whatever is still exported. Idempotent."""
        self._channel.memory.release_all()


def open_ipc(
    settings: ChannelSettings, client: WeightSyncClient, source: WeightSource
) -> IpcTrainerEngine:
    """Return vLLM's trainer engine with an open channel; on every rank.

    Raises:
        Exception: whatever the client raised.
    """
    seams.install(ipc_engine, torch=cpu.TORCH, reduce_tensor=cpu.reduce_tensor)
    seams.install(packed_tensor, torch=cpu.TORCH, reduce_tensor=cpu.reduce_tensor)
    init_info = ipc_engine.IPCTrainerInitInfo(
        rank=settings.rank,
        packed=settings.packed,
        packed_buffer_size_bytes=settings.buffer_bytes,
    )
    with seams.acting_for(cpu.Channel(settings)):
        engine: IpcTrainerEngine = IpcTrainerEngine.trainer_init(
            init_info, client=seams.RankPoints(client, settings), source=source
        )
    return engine
