"""Makers of trainer engines for the trainer checks, over the fakes' data planes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from conformance.trainer.contract import Notebook, Opening, Receiver, TrainerMaker
from fakes.data_plane.nccl_like import NcclLikeCommunicator
from fakes.data_plane.receivers import make_worker_transfer
from fakes.megatron.layout import Layout
from fakes.megatron.world import World
from fakes.send_loops import ChannelSettings, nccl, open_channel
from harness.contracts import Json, TrainerEngine

PROCESS_GROUP_S = 60.0  # longer than any check: what blocks stays blocked

Opener = Callable[[ChannelSettings, Any, Any], TrainerEngine]


def note_broadcasts(module: ModuleType, name: str, notes: Notebook) -> None:
    """Have the communicator class that a module names note what its sender does."""
    base: type[NcclLikeCommunicator] = getattr(module, name)

    class Noted(base):  # type: ignore[misc, valid-type]
        def __init__(self, **arguments: Any) -> None:
            with notes.inside("rendezvous"):
                super().__init__(**arguments)

        def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> int:
            operation: int = super().broadcast(tensor, src, stream)
            notes.enqueued(tensor.nbytes)  # afterwards: fault points come before it
            return operation

        def synchronize(self, up_to: int | None = None) -> None:
            in_flight = [each["seq"] for each in self.pending() if each["op"] == "broadcast"]
            if not in_flight or (up_to is not None and up_to < in_flight[0]):
                return super().synchronize(up_to)
            with notes.waiting("synchronize"):
                return super().synchronize(up_to)

    setattr(module, name, Noted)


class Worker:
    """One worker of an engine: what it receives is whole, or it raises."""

    def __init__(self, transport: str) -> None:
        self._transfer = make_worker_transfer(
            transport, rank=0, world_size=1, gpu_uuid="GPU-0", rendezvous_s=PROCESS_GROUP_S
        )
        self.init = self._transfer.init

    def receive(self, update_info: Mapping[str, Json]) -> Any:
        for name, tensor in self._transfer.receive(update_info):
            expected = float(name.removeprefix("w"))
            assert bool((tensor == expected).all()), f"{name}: expected {expected}, found {tensor}"
            yield name, tensor


class Trainer:
    """A maker around a function with the arguments of `fakes.send_loops.open_channel`.

    Args:
        open_channel: that function.
        module, name: where it finds the class of its communicator.
    """

    def __init__(self, open_channel: Opener, module: ModuleType, name: str) -> None:
        self._open_channel = open_channel
        self._communicator = module, name

    def join(self, rank: int, num_ranks: int, directory: Path) -> World:
        layout = Layout(data=num_ranks)
        return World(layout, rank=rank, store_path=directory / "store", timeout_s=PROCESS_GROUP_S)

    def open(
        self, opening: Opening, client: object, source: object, notes: Notebook
    ) -> TrainerEngine:
        note_broadcasts(*self._communicator, notes)
        settings = ChannelSettings(
            transport=opening.transport,
            packed=opening.packed,
            rank=opening.rank,
            total_workers=1,
            rendezvous_s=opening.rendezvous_s,
            scratch_dir=opening.directory,
            injector=opening.injector,
            record=opening.record,
            buffer_bytes=opening.buffer_bytes,
        )
        return self._open_channel(settings, client, source)

    def receiver(self, transport: str) -> Receiver:
        return Worker(transport)


def ours() -> TrainerMaker:
    """Make our own send loops."""
    return Trainer(open_channel, nccl, "NcclLikeCommunicator")
