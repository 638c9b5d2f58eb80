"""What vLLM's trainer engines find in place of a GPU.

vLLM's modules name everything of torch's as ``torch.<...>``. `install` puts a stand-in under that
one name into a module of vLLM's: it answers for the few names that need a GPU, and passes every
other on to torch. torch itself is not touched, so a vLLM worker forked from the same parent is not
either; installing is left to a rank's own process, after the fork.

The channel whose engine is running in a thread says, through `acting_for`, who is asked for memory,
fault points and the journal.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from fakes.data_plane.nccl_like import NcclLikeCommunicator
from fakes.data_plane.shared_memory import SharedBuffer, SharedMemoryExporter
from fakes.send_loops import ChannelSettings
from harness.contracts import Json


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


class Channel:
    """What one channel gives to the code of vLLM that runs for it: its settings and memory."""

    def __init__(self, settings: ChannelSettings) -> None:
        self.settings = settings
        self.memory = Memory(settings)


class _Acting(threading.local):
    channel: Channel | None = None
    stream: Stream | None = None  # chosen with ``torch.cuda.stream``; otherwise the default one


_acting = _Acting()
_default_stream = Stream()


@contextmanager
def acting_for(channel: Channel) -> Iterator[None]:
    """Let vLLM's code run for this channel, in this thread."""
    before, _acting.channel = _acting.channel, channel
    try:
        yield
    finally:
        _acting.channel = before


def acting() -> Channel:
    """Return the channel that vLLM's code is running for, in this thread."""
    assert _acting.channel is not None, "vLLM's code was called outside of acting_for()"
    return _acting.channel


def current_stream(device: object = None) -> Stream:
    """Return the stream that this thread enqueues on."""
    return _acting.stream or _default_stream


@contextmanager
def _stream(chosen: Stream) -> Iterator[None]:
    before, _acting.stream = _acting.stream, chosen
    try:
        yield
    finally:
        _acting.stream = before


def reduce_tensor(tensor: torch.Tensor) -> tuple[None, dict[str, Json]]:
    """Stand in for torch's: there is nothing to rebuild with, the handle says it all."""
    return None, acting().memory.handle_of(tensor)


def _empty(*size: Any, **options: Any) -> Any:
    if options.get("device") != "cuda":
        return torch.empty(*size, **options)
    assert options["dtype"] == torch.uint8, "packed_ipc_producer allocates nothing but bytes"
    return acting().memory.empty(*size)


def _barrier(*args: Any, **options: Any) -> None:
    settings = acting().settings
    settings.injector.reach("rank.barrier")
    settings.record("barrier", phase="begin")
    dist.barrier(*args, **options)
    settings.record("barrier", phase="end")


def _properties(device: object) -> SimpleNamespace:
    """Return what ``get_device_properties`` says: each rank has a GPU of its own."""
    return SimpleNamespace(uuid=f"GPU-{acting().settings.rank}")


class _StandIn(ModuleType):
    """A module of torch's with some names replaced."""

    def __init__(self, real: ModuleType, **replaced: Any) -> None:
        super().__init__(real.__name__)
        self._real = real
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


TORCH = _StandIn(
    torch,
    accelerator=_StandIn(torch.accelerator, current_device_index=lambda: 0),
    cuda=_StandIn(
        torch.cuda,
        Stream=Stream,
        current_stream=current_stream,
        get_device_properties=_properties,
        ipc_collect=lambda: None,
        is_available=lambda: True,
        stream=_stream,
        synchronize=lambda: None,
    ),
    distributed=_StandIn(dist, barrier=_barrier),
    empty=_empty,
)


class RankPoints:
    """The engines' control plane, with the fault point of the trainer's side before an update.

    Args:
        client: the one that the trainer engine was given.
        settings: of the channel.
    """

    def __init__(self, client: Any, settings: ChannelSettings) -> None:
        self._client = client
        self._settings = settings
        self.init_weight_transfer_engine = client.init_weight_transfer_engine
        self.start_weight_update = client.start_weight_update
        self.finish_weight_update = client.finish_weight_update

    def update_weights(self, update_info: dict[str, Json]) -> None:
        """Reach ``rank.update_call``, in the thread that vLLM calls from, and pass the call on."""
        self._settings.injector.reach("rank.update_call")
        self._client.update_weights(update_info)


def install(module: ModuleType, **names: Any) -> None:
    """Replace names that a module of vLLM's has imported; again changes nothing.

    Raises:
        AttributeError: it does not have such a name, so this is not the vLLM that we know.
    """
    for name, stand_in in names.items():
        if not hasattr(module, name):
            raise AttributeError(
                f"{module.__name__}: expected the name {name!r} of vLLM 0.32, found none. "
                f"Compare vllm_engine/trainer with the installed vLLM."
            )
        setattr(module, name, stand_in)
