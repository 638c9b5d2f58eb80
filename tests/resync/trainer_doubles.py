"""Trainer engines and a weight source with vLLM's call order, over a `ThreadGroup`.

Source: ``nccl_engine.py`` and ``ipc_engine.py`` of vLLM 0.32, ``distributed/weight_transfer``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import torch
from fake_vllm import TENSORS
from thread_group import ThreadGroup

from resync import ResumableWeightSource, WeightSyncClient

TENSOR_BYTES = 16


def nothing() -> None:
    """The default of the hooks."""


@dataclass
class Source:
    """A re-iterable source whose metadata and every tensor are collectives of all ranks."""

    group: ThreadGroup
    rank: int
    step: int = 0  # of the trainer; every push sends another one
    draft: bool = False
    fail_at: str | None = None  # the tensor whose gather raises on this rank
    passes: list[str] = field(default_factory=list)  # what each complete pass has sent
    abandoned: int = 0  # passes whose generator was closed in the middle

    @property
    def content(self) -> str:
        """What the weights that are sent now are called."""
        return f"{'draft' if self.draft else 'target'} {self.step}"

    def metadata(self) -> Sequence[tuple[str, str]]:
        """Return each tensor's name and content."""
        self.group.meet(self.rank, "metadata")
        return [(name, self.content) for name in TENSORS]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Gather each tensor with the other ranks."""
        content = self.content
        try:
            for name in TENSORS:
                if name == self.fail_at:
                    raise RuntimeError(f"gather of {name} failed")
                self.group.meet(self.rank, f"gather {content} {name}")
                yield name, torch.full((TENSOR_BYTES // 4,), float(self.step))
        except GeneratorExit:
            self.abandoned += 1
            raise
        self.passes.append(content)


class Communicator:
    """The sender's end of an NCCL group: broadcasts enqueue, or block until it is destroyed."""

    def __init__(self, *, blocks: bool) -> None:
        self.sent: list[str] = []
        self.destroyed = 0
        self._blocks = blocks
        self._freed = threading.Event()

    def broadcast(self, name: str) -> None:
        """Send one tensor; nothing after `destroy`."""
        if self._freed.is_set():
            return
        self.sent.append(name)
        if self._blocks:
            assert self._freed.wait(5), "a broadcast that nobody receives was never freed"

    def destroy(self) -> None:
        """Free a broadcast that is under way and disable later ones."""
        self.destroyed += 1
        self._freed.set()


@dataclass
class TrainerDouble:
    """What both transports share. ``sees_rejection`` says when NCCL looks at its update request."""

    client: WeightSyncClient
    source: ResumableWeightSource
    group: ThreadGroup
    rank: int
    sees_rejection: str = "after the pass"
    blocks: bool = False
    packed: bool = False
    rendezvous: Callable[[], None] = nothing
    closes: int = 0

    @property
    def is_sender(self) -> bool:
        """Whether this rank talks to the engines."""
        return self.rank == 0

    def open(self) -> None:
        """Do what ``trainer_init`` does."""
        raise NotImplementedError

    def send_weights(self) -> None:
        """Make one pass on this rank."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """Count; vLLM's may be called twice."""
        self.closes += 1


@dataclass
class NcclTrainer(TrainerDouble):
    """Update on a side thread while this one gathers and broadcasts."""

    model_update_group: Communicator | None = None

    def open(self) -> None:
        """Init on a side thread, rendezvous here; the side thread is joined on every way out."""
        if not self.is_sender:
            return
        init_info = {"master_port": 1, "rank_offset": 1, "packed": self.packed}
        with ThreadPoolExecutor(1) as executor:
            future = executor.submit(self.client.init_weight_transfer_engine, init_info)
            self.rendezvous()
            self.model_update_group = Communicator(blocks=self.blocks)
            future.result()

    def send_weights(self) -> None:
        """Ranks other than the sender only iterate, and succeed whatever the engines said."""
        metadata = self.source.metadata()
        if not self.is_sender:
            for _ in self.source:
                pass
            return
        assert self.model_update_group is not None
        self.client.start_weight_update()
        info = {"names": [name for name, _ in metadata], "content": metadata[0][1]}
        executor = ThreadPoolExecutor(1)
        try:
            future = executor.submit(self.client.update_weights, info)
            if self.sees_rejection == "before the pass":
                wait([future])
                future.result()
            for name, _ in self.source:
                self.model_update_group.broadcast(name)
            future.result()
        finally:
            executor.shutdown(wait=False)
        self.client.finish_weight_update()


@dataclass
class IpcTrainer(TrainerDouble):
    """All ranks gather handles and meet in barriers; the sender's requests lie between them."""

    def open(self) -> None:
        """There is no rendezvous."""
        if self.is_sender:
            self.client.init_weight_transfer_engine({"packed": self.packed})

    def send_weights(self) -> None:
        """Send in one request, or in chunks of two tensors with a barrier after each."""
        if self.is_sender:
            self.client.start_weight_update()
        chunk: list[str] = []
        value = 0.0
        for name, tensor in self.source:
            chunk.append(name)
            value = float(tensor[0])
            if self.packed and len(chunk) == 2:
                self._send(chunk, value)
                self.group.meet(self.rank, "barrier after a chunk")
                chunk = []
        self._send(chunk, value)
        if self.packed:
            self.group.meet(self.rank, "barrier after a chunk")
        if self.is_sender:
            self.client.finish_weight_update()
        self.group.meet(self.rank, "barrier at the end")

    def _send(self, names: list[str], value: float) -> None:
        handles = self.group.meet(self.rank, "gather handles", {"GPU-0": ("rebuild", names)})
        self.group.meet(self.rank, "barrier after the handles")
        if self.is_sender:
            content = f"{'draft' if self.source.draft else 'target'} {value:g}"
            info: dict[str, Any] = {"names": names, "content": content, "ipc_handles": handles}
            self.client.update_weights(info)


TRAINERS = {"nccl": NcclTrainer, "ipc": IpcTrainer}
