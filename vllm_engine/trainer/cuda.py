"""vLLM's own trainer engines on a rank's GPU: its PyNccl broadcasts, its CUDA IPC handles.

The ranks gather on the CPU; what a rank yields to vLLM is copied to its GPU (`OnGpu`). Of the data
plane nothing is replaced. What stands in vLLM's way are fault points, by the line of vLLM 0.32.0
that they are put at:

===========================  =================================================================
name                         used at, and what is added
===========================  =================================================================
``nccl_engine.``             313: vLLM's own, of ``nccl_common``; ``rank.rendezvous`` is
``open_trainer_endpoint``    reached before, and a communicator that would send nothing is an
                             error (``pynccl.py`` 127-138 make it without a word)
``PyNcclCommunicator.``      393 and ``packed_tensor.py`` 185: vLLM's own, but
``broadcast`` (instance)     ``rank.broadcast`` is reached before
``ipc_engine.torch``         351 and 372 ``torch.distributed.barrier``: torch's, but
                             ``rank.barrier`` is reached before, and the journal told
===========================  =================================================================

and those of `vllm_engine.trainer.nccl` that are not about the CPU. The rendezvous has vLLM's own
limit of 300 s (``distributed/utils.py`` 471), whatever the scenario says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from vllm.distributed.weight_transfer import ipc_engine, nccl_common, nccl_engine

from fakes.send_loops import ChannelSettings, find_opener
from fakes.send_loops.protocols import ParamMeta, WeightSource, WeightSyncClient
from harness.gpus import VISIBLE
from vllm_engine.trainer import nccl, seams


class OnGpu:
    """A weight source whose tensors are copied to this process's GPU as they are yielded.

    On the stream that vLLM has made current, so what it does next with them comes after.
    """

    def __init__(self, source: WeightSource, device: torch.device) -> None:
        self._source = source
        self._device = device

    def metadata(self) -> Sequence[ParamMeta]:
        """Return what an iteration yields."""
        return self._source.metadata()

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield names and tensors; as of the source, a collective of all ranks."""
        for name, tensor in self._source:
            yield name, tensor.to(self._device)


class IpcTrainerEngine(ipc_engine.IPCTrainerWeightTransferEngine):  # type: ignore[misc]
    """vLLM's engine; made by `open_channel`."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._channel = seams.acting()

    def send_weights(self) -> None:
        """Push every tensor of the source; vLLM's own."""
        with seams.acting_for(self._channel):
            super().send_weights()


def open_channel(
    settings: ChannelSettings, client: WeightSyncClient, source: WeightSource
) -> nccl.NcclTrainerEngine | IpcTrainerEngine:
    """Open a fresh channel, as `fakes.send_loops.open_channel` does; called on every trainer rank.

    A rank that was given no GPU only gathers, so its tensors stay where they are.

    Raises:
        ValueError: unknown transport.
        RuntimeError: CUDA does not come up on the rank's GPU.
        Exception: the channel could not be opened.
    """
    opener = find_opener(TRANSPORTS, settings.transport)
    if gpu := os.environ[VISIBLE]:
        source = OnGpu(source, _device(settings.rank, gpu))
    return opener(settings, client, source)


def _device(rank: int, gpu: str) -> torch.device:
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError) as error:  # the former of a torch without CUDA
        raise RuntimeError(
            f"rank {rank}: expected CUDA on its GPU ({VISIBLE}={gpu}), found: {error} Install "
            "the build for CUDA, as `nox -s gpu_night` does, and see that nvidia-smi shows the GPU."
        ) from error
    return torch.device("cuda", 0)  # of those that it sees, which is one


def _open_nccl(
    settings: ChannelSettings, client: WeightSyncClient, source: WeightSource
) -> nccl.NcclTrainerEngine:
    return nccl.trainer_init(settings, client, source, open_endpoint=_open_endpoint)


def _open_endpoint(init_info: nccl_engine.NCCLTrainerInitInfo) -> Any:
    settings = seams.acting().settings
    settings.injector.reach("rank.rendezvous")
    group = nccl_common.trainer_init(init_info)
    if group.disabled and init_info.world_size > 1:
        raise RuntimeError(
            f"rank {settings.rank}: expected an NCCL communicator, found one that sends nothing. "
            "See that libnccl can be loaded and VLLM_DISABLE_PYNCCL is not set."
        )
    broadcast = group.broadcast

    def visited(tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        name, group.first_name = group.first_name, None
        settings.injector.reach("rank.broadcast", tensor=name)
        broadcast(tensor, src, stream)

    group.first_name, group.broadcast = None, visited
    return group


def _open_ipc(
    settings: ChannelSettings, client: WeightSyncClient, source: WeightSource
) -> IpcTrainerEngine:
    seams.install(ipc_engine, torch=seams.StandIn(torch, distributed=seams.DISTRIBUTED))
    init_info = ipc_engine.IPCTrainerInitInfo(
        rank=settings.rank,
        packed=settings.packed,
        packed_buffer_size_bytes=settings.buffer_bytes,
    )
    with seams.acting_for(seams.Channel(settings)):
        engine: IpcTrainerEngine = IpcTrainerEngine.trainer_init(
            init_info, client=seams.RankPoints(client, settings), source=source
        )
    return engine


TRANSPORTS: Mapping[str, Callable[..., nccl.NcclTrainerEngine | IpcTrainerEngine]] = {
    "nccl": _open_nccl,
    "ipc": _open_ipc,
}
