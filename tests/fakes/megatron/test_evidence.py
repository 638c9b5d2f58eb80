"""What a rank tells of its collectives, at whatever moment it is asked."""

from __future__ import annotations

import os
from pathlib import Path

import torch.distributed as dist
from torch.distributed.distributed_c10d import _world

from fakes.megatron.evidence import collectives
from tests.fakes.data_plane.forked import run_forked


def test_while_a_group_is_made(tmp_path: Path) -> None:
    """A group that has a name and no members yet is left out; it cannot be in a collective."""

    def rank() -> object:
        # In a process of its own: gloo's threads would not survive the forks of other tests.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = f"file://{tmp_path}/store"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        group = dist.group.WORLD
        assert group is not None
        del _world.pg_group_ranks[group]
        return collectives()

    assert run_forked([rank]) == [{"pending": [], "passed": []}]
