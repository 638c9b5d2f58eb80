"""One trainer rank's membership: the default gloo group and the groups of its layout."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from fakes.data_plane.rendezvous import RendezvousServer, RendezvousStore
from fakes.megatron.layout import GROUP_AXES, Layout

STORE_LIFE_S = 3600.0  # groups are made from the store as long as the trainer lives


class World:
    """A rank in its world. torch's default process group is per process, so one world a process.

    Set ``GLOO_SOCKET_IFNAME=lo`` in the process's environment before: gloo otherwise resolves the
    host's name, and may listen beyond loopback.

    Args:
        layout: the trainer's parallelism.
        rank: global rank.
        store_path: a Unix socket to be, where rank 0 serves the store; in a short path.
        timeout_s: time-out of each collective, of every group, in seconds.
        kinds: the kinds of groups to make; a group costs each member some milliseconds.
        slot: the ranks of this rank's engine slot, for a group of them.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        rank: int,
        store_path: Path,
        timeout_s: float,
        kinds: Sequence[str] = ("tp", "pp"),
        slot: Sequence[int] = (),
    ) -> None:
        torch.set_num_threads(1)
        self.layout = layout
        self.rank = rank
        self.world_size = layout.world_size
        self.coordinates = layout.coordinates(rank)
        # Looked up for every tensor of every pass, and costly in a large world.
        self._ranks = {kind: layout.group_of(kind, rank) for kind in GROUP_AXES}
        timeout = timedelta(seconds=timeout_s)
        self._server = RendezvousServer(str(store_path)) if rank == 0 else None
        # Kept here: torch holds the C++ half of a Python store only.
        self._store = RendezvousStore(str(store_path), rendezvous_s=STORE_LIFE_S)
        dist.init_process_group(
            "gloo",
            store=self._store,
            rank=rank,
            world_size=self.world_size,
            timeout=timeout,
        )
        self._groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {
            tuple(range(self.world_size)): dist.group.WORLD
        }
        self._ranks["slot"] = list(slot) or [rank]
        for kind in (*kinds, "slot"):
            ranks = self.ranks(kind)
            if len(ranks) > 1 and tuple(ranks) not in self._groups:
                self._groups[tuple(ranks)] = dist.new_group(
                    ranks, timeout=timeout, use_local_synchronization=True
                )

    def ranks(self, kind: str) -> list[int]:
        """Return the global ranks of this rank's group of one kind."""
        return self._ranks[kind]

    def group(self, kind: str) -> dist.ProcessGroup:
        """Return this rank's group of one kind, of two ranks or more.

        Raises:
            KeyError: it was not among the kinds to make, or this rank is alone in it.
        """
        group = self._groups[tuple(self.ranks(kind))]
        assert group is not None
        return group

    @property
    def slot_group(self) -> dist.ProcessGroup | None:
        """The group of this rank's engine slot; ``None`` where it is alone in it."""
        return self.group("slot") if len(self.ranks("slot")) > 1 else None

    def close(self) -> None:
        """Leave every group; joins gloo's threads (tens of milliseconds)."""
        self._groups.clear()
        dist.destroy_process_group()
        if self._server is not None:
            self._server.close()
