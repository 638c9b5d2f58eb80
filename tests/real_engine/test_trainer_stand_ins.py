"""What vLLM's trainer engines find in place of a GPU, and what is left alone."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer import ipc_engine, nccl_engine, packed_tensor

from fakes.data_plane.nccl_like import NcclLikeCommunicator
from fakes.data_plane.shared_memory import open_handle
from fakes.send_loops import ChannelSettings
from harness.contracts import NoFaults, no_record
from vllm_engine.trainer import cpu, open_channel, seams


def settings(directory: Path, **changes: Any) -> ChannelSettings:
    given: dict[str, Any] = {
        "transport": "ipc",
        "packed": True,
        "rank": 1,
        "total_workers": 2,
        "rendezvous_s": 1.0,
        "scratch_dir": directory,
        "injector": NoFaults(),
        "record": no_record,
    }
    return ChannelSettings(**given | changes)


@pytest.mark.parametrize("module", [ipc_engine, nccl_engine, packed_tensor])
def test_importing_replaces_nothing(module: ModuleType) -> None:
    """A server may be forked from a process that imported the package: its vLLM is untouched."""
    assert vars(module)["torch"] is torch


def test_torch_itself_is_untouched() -> None:
    """Only vLLM's modules see a GPU, and what needs none is torch's own."""
    assert cpu.TORCH.cuda.is_available()
    assert cpu.TORCH.accelerator.current_device_index() == 0
    assert not torch.cuda.is_available()
    assert cpu.TORCH.cat is torch.cat
    assert cpu.TORCH.distributed.all_gather_object is dist.all_gather_object
    assert torch.equal(cpu.TORCH.empty(0, dtype=torch.int8), torch.empty(0, dtype=torch.int8))


def test_another_vllm_is_refused() -> None:
    """A name that is to be replaced and is not there means that the code has changed."""
    text = (
        "somewhere: expected the name 'torch' of vLLM 0.32, found none. "
        "Compare vllm_engine/trainer with the installed vLLM."
    )
    with pytest.raises(AttributeError, match=f"^{re.escape(text)}$"):
        seams.install(ModuleType("somewhere"), torch=cpu.TORCH)


def test_memory_of_the_packed_buffer_is_exported_itself(tmp_path: Path) -> None:
    """What is written into it after the export is seen; any other tensor is copied."""
    channel = cpu.Channel(settings(tmp_path))
    with seams.acting_for(channel):
        buffer = cpu.TORCH.empty(4, dtype=torch.uint8, device="cuda")
        ordinary = torch.zeros(4, dtype=torch.uint8)
        views = [open_handle(cpu.reduce_tensor(tensor)[1]) for tensor in (buffer, ordinary)]
        buffer.fill_(7)
        ordinary.fill_(7)
        assert [view.tolist() for view in views] == [[7] * 4, [0] * 4]
        channel.memory.release_all()
    assert list(tmp_path.iterdir()) == []


def test_each_rank_has_a_gpu_of_its_own(tmp_path: Path) -> None:
    """The identity that a rank's handles carry is its own, in the thread that acts for it."""
    with seams.acting_for(cpu.Channel(settings(tmp_path))):
        assert cpu.TORCH.cuda.get_device_properties(0).uuid == "GPU-1"
        with seams.acting_for(cpu.Channel(settings(tmp_path, rank=0))):
            assert cpu.TORCH.cuda.get_device_properties(0).uuid == "GPU-0"
        assert cpu.TORCH.cuda.get_device_properties(0).uuid == "GPU-1"
    with pytest.raises(AssertionError, match="outside of acting_for"):
        seams.acting()


# fmt: off
REPLACED = [
    # module        lines         what is there in vLLM 0.32.0
    (nccl_engine,   (386, 456),   "torch.cuda.current_stream"),
    (nccl_engine,   (455,),       "torch.cuda.is_available"),
    (nccl_engine,   (313,),       "open_trainer_endpoint("),
    (nccl_engine,   (341,),       "ThreadPoolExecutor("),
    (nccl_engine,   (347,),       "future.done()"),
    (nccl_engine,   (375,),       "self._checked_iter("),
    (ipc_engine,    (279,),       "torch.accelerator.current_device_index"),
    (ipc_engine,    (280,),       "torch.cuda.get_device_properties"),
    (ipc_engine,    (351, 372),   "torch.distributed.barrier"),
    (ipc_engine,    (352,),       "torch.cuda.synchronize"),
    (ipc_engine,    (373,),       "torch.cuda.ipc_collect"),
    (ipc_engine,    (398,),       "reduce_tensor("),
    (ipc_engine,    (401, 418),   "self._all_gather_and_merge_handles("),
    (packed_tensor, (24,),        "torch.cuda.Stream("),
    (packed_tensor, (168,),       "torch.accelerator.current_device_index"),
    (packed_tensor, (180,),       "torch.cuda.stream("),
    (packed_tensor, (342,),       "torch.empty("),
    (packed_tensor, (343,),       "reduce_tensor("),
    (packed_tensor, (365, 386),   "torch.cuda.current_stream"),
]
# fmt: on


@pytest.mark.parametrize(("module", "lines", "there"), REPLACED)
def test_what_the_docstrings_point_at(
    module: ModuleType, lines: tuple[int, ...], there: str
) -> None:
    """The lines of vLLM whose names are replaced are those that are on record."""
    source = inspect.getsource(module).splitlines()
    assert all(there in source[line - 1] for line in lines)


class Group:
    """A communicator that notes what is waited for."""

    def __init__(self) -> None:
        self.waited: list[int] = []

    def synchronize(self, up_to: int) -> None:
        self.waited.append(up_to)


def test_a_stream_waits_for_what_is_on_it() -> None:
    """Not for what was enqueued on another stream, and not at all while it is empty."""
    group = Group()
    communicator = cast(NcclLikeCommunicator, group)
    first, second = cpu.TORCH.cuda.Stream(device=0), cpu.TORCH.cuda.Stream(device=0)
    first.synchronize()
    with cpu.TORCH.cuda.stream(first):
        assert cpu.TORCH.cuda.current_stream() is first
        first.enqueued(communicator, 1)
        with cpu.TORCH.cuda.stream(second):
            assert cpu.TORCH.cuda.current_stream() is second
            second.enqueued(communicator, 2)
        assert cpu.TORCH.cuda.current_stream() is first
    first.synchronize()
    second.synchronize()
    assert group.waited == [1, 2]


def test_unknown_transport(tmp_path: Path) -> None:
    """The error lists the known transports, as that of our own send loops."""
    text = "transport: expected one of ['ipc', 'nccl'], found 'disk'."
    with pytest.raises(ValueError, match=re.escape(text)):
        open_channel(settings(tmp_path, transport="disk"), cast(Any, None), cast(Any, None))
