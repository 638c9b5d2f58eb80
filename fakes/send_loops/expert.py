"""The trainer's end of an expert-routing push: one sender for each engine slot.

Every rank iterates the source, which routes each expert from the ranks that hold it to the others;
the ranks of a slot then hand their handles to its leader, which drives start, update and finish on
its own engine.

Source: vime's ``UpdateWeightFromTensor``, where it has an expert transfer plan.
"""

from __future__ import annotations

import torch.distributed as dist

from fakes.send_loops.ipc import IpcTrainerEngine
from fakes.send_loops.protocols import WeightSource, WeightSyncClient
from fakes.send_loops.settings import ChannelSettings


class ExpertTrainerEngine(IpcTrainerEngine):
    """An `IpcTrainerEngine` of one slot. The slots start and finish together."""

    def send_weights(self) -> None:
        """Push every tensor of the source; called on every rank.

        Raises:
            ValueError: packed, and a tensor is larger than the buffer (on every rank).
            Exception: whatever the client raised (leaders).
        """
        if self.is_sender:
            self.client.start_weight_update()
        self._barrier_of(dist.group.WORLD)
        try:
            self._send_packed() if self.packed else self._send_unpacked()
            # No engine commits before every one has its weights.
            self._barrier_of(dist.group.WORLD)
            if self.is_sender:
                self.client.finish_weight_update()
            self._barrier_of(dist.group.WORLD)
        finally:
            self.exporter.release_all()


def open_expert(
    settings: ChannelSettings, client: WeightSyncClient, source: WeightSource
) -> ExpertTrainerEngine:
    """Return a trainer engine with an open channel; on every rank."""
    engine = ExpertTrainerEngine(settings, client, source)
    if engine.is_sender:
        client.init_weight_transfer_engine({"packed": settings.packed})
    return engine
