"""What a trainer engine needs to know of the scenario, and the seams it strikes faults through."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.contracts import Injector, Recorder


@dataclass(frozen=True, kw_only=True)
class ChannelSettings:
    """How one trainer rank opens its channels.

    Attributes:
        transport: ``nccl`` or ``ipc``.
        packed: whether tensors share buffers.
        rank: this trainer rank; rank 0 is the sender.
        total_workers: workers over all engines.
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
    buffer_bytes: int = 24 * 1024
    num_buffers: int = 2

    @property
    def is_sender(self) -> bool:
        """Whether this rank talks to the engines."""
        return self.rank == 0
