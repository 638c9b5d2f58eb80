"""What vLLM's trainer engines find in place of a GPU.

vLLM's modules name everything of torch's as ``torch.<...>``. `seams.install` puts a stand-in under
that one name into a module of vLLM's: it answers for the few names that need a GPU, and passes
every other on to torch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from fakes.data_plane.nccl_like import NcclLikeCommunicator
from fakes.data_plane.shared_memory import SharedBuffer, SharedMemoryExporter
from fakes.send_loops import ChannelSettings
from harness.contracts import Json
from vllm_engine.trainer import seams
from vllm_engine.trainer.seams import DISTRIBUTED, StandIn, acting


class Stream:
    """A CUDA stream: it knows the last broadcast that was enqueued on it."""

    def __init__(self, device: object = None) -> None:
        self._last: tuple[NcclLikeCommunicator, int] | None = None

    def enqueued(self, group: NcclLikeCommunicator, operation: int) -> None:
        """Note that ``operation`` of ``group`` now comes after all that the stream has."""
        self._last = group, operation

    def synchronize(self) -> None:
        """Block until everything on the stream is done, or its communicator is destroyed."""
        if self._last is not None:
            group, operation = self._last
            group.synchronize(operation)


class Memory:
    """Memory that engines can map: what ``cudaMalloc`` and ``reduce_tensor`` are on a GPU."""

    def __init__(self, settings: ChannelSettings) -> None:
        self.exporter = SharedMemoryExporter(settings.scratch_dir)
        self._allocated: dict[int, SharedBuffer] = {}  # address -> buffer

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Return ``uint8[num_bytes]`` that can be exported as it is."""
        buffer = self.exporter.allocate(num_bytes)
        self._allocated[buffer.tensor.data_ptr()] = buffer
        return buffer.tensor

    def handle_of(self, tensor: torch.Tensor) -> dict[str, Json]:
        """Return a handle, JSON, to the tensor's memory; to a copy if it is ordinary memory."""
        buffer = self._allocated.get(tensor.data_ptr()) or self.exporter.reduce(tensor)
        return buffer.handle

    def release_all(self) -> None:
        """Free all of it. Idempotent."""
        self._allocated.clear()
        self.exporter.release_all()


class Channel(seams.Channel):
    """A channel with the memory that its rank hands out."""

    def __init__(self, settings: ChannelSettings) -> None:
        super().__init__(settings)
        self.memory = Memory(settings)


def _memory() -> Memory:
    channel = acting()
    assert isinstance(channel, Channel)
    return channel.memory


class _Chosen(threading.local):
    stream: Stream | None = None  # with ``torch.cuda.stream``; otherwise the default one


_chosen = _Chosen()
_default_stream = Stream()


def current_stream(device: object = None) -> Stream:
    """Return the stream that this thread enqueues on."""
    return _chosen.stream or _default_stream


@contextmanager
def _stream(stream: Stream) -> Iterator[None]:
    before, _chosen.stream = _chosen.stream, stream
    try:
        yield
    finally:
        _chosen.stream = before


def reduce_tensor(tensor: torch.Tensor) -> tuple[None, dict[str, Json]]:
    """Stand in for torch's: there is nothing to rebuild with, the handle says it all."""
    return None, _memory().handle_of(tensor)


def _empty(*size: Any, **options: Any) -> Any:
    if options.get("device") != "cuda":
        return torch.empty(*size, **options)
    assert options["dtype"] == torch.uint8, "packed_ipc_producer allocates nothing but bytes"
    return _memory().empty(*size)


def _properties(device: object) -> SimpleNamespace:
    """Return what ``get_device_properties`` says: each rank has a GPU of its own."""
    return SimpleNamespace(uuid=f"GPU-{acting().settings.rank}")


TORCH = StandIn(
    torch,
    accelerator=StandIn(torch.accelerator, current_device_index=lambda: 0),
    cuda=StandIn(
        torch.cuda,
        Stream=Stream,
        current_stream=current_stream,
        get_device_properties=_properties,
        ipc_collect=lambda: None,
        is_available=lambda: True,
        stream=_stream,
        synchronize=lambda: None,
    ),
    distributed=DISTRIBUTED,
    empty=_empty,
)
