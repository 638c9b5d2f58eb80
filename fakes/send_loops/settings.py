"""What a trainer engine needs to know of the scenario, and the seams it strikes faults through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from harness.contracts import Injector, Recorder


@dataclass(frozen=True)
class Slot:
    """The trainer ranks that share their GPUs with one engine.

    Attributes:
        ranks: ascending; the first leads the slot.
        group: of them; ``None`` for one rank alone.
        gpus: numbers of the GPUs that the engine's workers run on.
    """

    ranks: Sequence[int]
    group: dist.ProcessGroup | None
    gpus: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class ChannelSettings:
    """How one trainer rank opens its channels.

    Attributes:
        transport: ``nccl`` or ``ipc``.
        packed: whether tensors share buffers.
        rank: this trainer rank.
        sender: the rank that sends what this one takes part in gathering.
        slot: the engine slot that this rank belongs to, where each engine has one.
        total_workers: workers over all engines of the scenario.
        rendezvous_s: how long the sender waits for the workers to join, in seconds.
        scratch_dir: where shared memory goes; put it on ``/dev/shm``.
        injector: decides about faults at the ``rank.*`` points.
        record: the journal.
        buffer_bytes: size of a packed buffer; small, so that a pass has several chunks.
        num_buffers: packed NCCL buffers in flight.
    """

    transport: str
    packed: bool
    rank: int
    total_workers: int
    rendezvous_s: float
    scratch_dir: Path
    injector: Injector
    record: Recorder
    sender: int = 0
    slot: Slot | None = None
    buffer_bytes: int = 24 * 1024
    num_buffers: int = 2

    def num_members(self, client: object) -> int:
        """Return the size of the NCCL group: the sender, and the workers that take part.

        A client that leaves engines out says how many workers are left; others take them all.
        """
        return 1 + int(getattr(client, "num_workers", self.total_workers))

    @property
    def is_sender(self) -> bool:
        """Whether this rank talks to the engines."""
        return self.rank == self.sender
