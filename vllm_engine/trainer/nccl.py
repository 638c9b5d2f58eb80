"""vLLM's own NCCL trainer engine, over a gloo group that behaves as NCCL does.

``trainer_init``, ``send_weights``, ``_broadcast`` and the packed producer are vLLM's. What is
replaced, by the line of ``nccl_engine.py`` or ``packed_tensor.py`` of vLLM 0.32.0 that uses it:

===========================  =================================================================
name                         used at, and why it is replaced
===========================  =================================================================
``nccl_engine.torch``        386 and 456 ``torch.cuda.current_stream``, 455
                             ``torch.cuda.is_available``: there is no GPU (`cpu.TORCH`)
``packed_tensor.torch``      168 ``torch.accelerator.current_device_index``, 24
                             ``torch.cuda.Stream``, 180 ``torch.cuda.stream``: the same
``nccl_engine.``             313, opens a ``PyNcclCommunicator``: there is no NCCL; a
``open_trainer_endpoint``    `StreamCommunicator`, once ``rank.rendezvous`` was reached
``nccl_engine.``             341: vLLM's own, but ``rank.update_sent`` is reached between
``ThreadPoolExecutor``       submitting the call and looking at it (347 ``future.done``)
``_checked_iter`` (method)   375: vLLM's own, but it notes for ``rank.broadcast`` which
                             tensor comes next
``send_weights`` (method)    vLLM's own, in the thread's `seams.acting_for`
===========================  =================================================================

``rank.bind`` is reached before ``trainer_init``; ``rank.update_call`` in the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from vllm.distributed.weight_transfer import nccl_engine, packed_tensor

from fakes.data_plane.nccl_like import NcclLikeCommunicator
from fakes.send_loops import ChannelSettings
from fakes.send_loops.nccl import ADDRESS, free_port
from fakes.send_loops.protocols import ParamMeta, WeightSource, WeightSyncClient
from vllm_engine.trainer import cpu, seams


class StreamCommunicator(NcclLikeCommunicator):
    """A communicator whose broadcasts go on the stream that CUDA would put them on.

    Attributes:
        first_name: of the tensors that the next broadcast carries.
    """

    first_name: str | None = None
    settings: ChannelSettings

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> int:
        """Enqueue a broadcast on ``stream``, by default the current one, and return at once."""
        self.settings.injector.reach("rank.broadcast", tensor=self.first_name)
        self.first_name = None
        operation = super().broadcast(tensor, src)
        on = stream if isinstance(stream, cpu.Stream) else cpu.current_stream()
        on.enqueued(self, operation)
        return operation


class NcclTrainerEngine(nccl_engine.NCCLTrainerWeightTransferEngine):  # type: ignore[misc]
    """vLLM's engine; made by `trainer_init`."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._channel = seams.acting()

    def send_weights(self) -> None:
        """Push every tensor of the source; vLLM's own."""
        with seams.acting_for(self._channel):
            super().send_weights()

    def _checked_iter(
        self, source: WeightSource, meta: Sequence[ParamMeta]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in super()._checked_iter(source, meta):
            group = self.model_update_group
            if group is not None and group.first_name is None:
                group.first_name = name
            yield name, tensor


class _Executor(ThreadPoolExecutor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        if fn.__name__ == "update_weights":  # and not the init
            seams.acting().settings.injector.reach("rank.update_sent")
        return future


def _open_endpoint(init_info: nccl_engine.NCCLTrainerInitInfo) -> StreamCommunicator:
    settings = seams.acting().settings
    settings.injector.reach("rank.rendezvous")
    group = StreamCommunicator(
        master_address=init_info.master_address,
        master_port=init_info.master_port,
        rank=0,
        world_size=init_info.world_size,
        rendezvous_s=settings.rendezvous_s,
        record=settings.record,
    )
    group.settings = settings
    return group


def open_nccl(
    settings: ChannelSettings, client: WeightSyncClient, source: WeightSource
) -> NcclTrainerEngine:
    """Return vLLM's trainer engine with an open channel over gloo; on every rank.

    Raises:
        OSError: the port was taken between choosing and binding it.
        Exception: the rendezvous failed, or whatever the client raised.
    """
    seams.install(nccl_engine, torch=cpu.TORCH)
    seams.install(packed_tensor, torch=cpu.TORCH)
    return trainer_init(settings, client, source, open_endpoint=_open_endpoint)


def trainer_init(
    settings: ChannelSettings,
    client: WeightSyncClient,
    source: WeightSource,
    *,
    open_endpoint: Callable[[nccl_engine.NCCLTrainerInitInfo], Any],
) -> NcclTrainerEngine:
    """Have vLLM open the channel, with the fault points in its way; raises as `open_nccl` does.

    Args:
        open_endpoint: makes the sender's end; called in vLLM's `trainer_init`.
    """
    seams.install(nccl_engine, open_trainer_endpoint=open_endpoint, ThreadPoolExecutor=_Executor)
    port = free_port()
    if settings.is_sender:
        settings.injector.reach("rank.bind", port=port)
    init_info = nccl_engine.NCCLTrainerInitInfo(
        rank=settings.rank,
        master_address=ADDRESS,
        master_port=port,
        # Only the sender's counts, and only its client knows.
        world_size=settings.num_members(client if settings.is_sender else None),
        packed=settings.packed,
        packed_buffer_size_bytes=settings.buffer_bytes,
        packed_num_buffers=settings.num_buffers,
    )
    with seams.acting_for(seams.Channel(settings)):
        engine: NcclTrainerEngine = NcclTrainerEngine.trainer_init(
            init_info, client=seams.RankPoints(client, settings), source=source
        )
    return engine
