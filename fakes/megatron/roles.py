"""Which ranks talk to which engines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fakes.megatron.layout import Layout
from harness.contracts import EngineAddress


class Roles:
    """The senders of one trainer.

    Args:
        senders: ``one``: rank 0. ``slots``: the ranks are divided among the engines in order, and
            the first of each engine's slot leads it (vime's expert routing: trainer and engine
            share the slot's GPUs). ``stages``: the first rank of each pipeline stage.
        layout: of the trainer.
        num_engines: of the scenario.

    Attributes:
        owners: for each engine the rank that controls it.
        stages: for each pipeline stage the rank that sends it; empty but for ``stages``.
    """

    def __init__(self, senders: str, layout: Layout, *, num_engines: int) -> None:
        self._slot_size = layout.world_size // num_engines if senders == "slots" else 0
        self.owners = tuple(index * self._slot_size for index in range(num_engines))
        self.stages: tuple[int, ...] = ()
        if senders == "stages":
            self.stages = tuple(layout.group_of("pp", 0))
        self._layout = layout

    def sender_of(self, rank: int) -> int:
        """Return the rank that sends what ``rank`` takes part in gathering."""
        if self._slot_size:
            return rank - rank % self._slot_size
        return self.stages[self._layout.coordinates(rank)["pp"]] if self.stages else 0

    def slot(self, rank: int) -> Sequence[int]:
        """Return the ranks of a rank's slot; empty where there are none."""
        leader = self.sender_of(rank)
        return range(leader, leader + self._slot_size)

    def gpus_of(self, slot: Sequence[int], engines: Iterable[EngineAddress]) -> Sequence[int]:
        """Return the numbers of the GPUs that a slot's engine runs on, and its ranks."""
        first = 0
        for engine, owner in zip(engines, self.owners, strict=True):
            if slot and owner == slot[0]:
                return range(first, first + engine.workers)
            first += engine.workers
        return ()
