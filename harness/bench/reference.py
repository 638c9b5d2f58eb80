"""How such tests are written today: spawn four gloo ranks a test, wait out a time-out for a hang.

Run as ``python -m harness.bench.reference run|hang``; prints the seconds of one repetition. A
process of its own, since the launcher does not import torch.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

RANKS = 4
GATHERS = 12
NUM_FLOATS = 1024
HANG_LIMIT_S = 10.0


def _join(rank: int, store: str, limit_s: float) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=limit_s),
    )


def _gather() -> None:
    part = torch.ones(NUM_FLOATS // RANKS)
    dist.all_gather([torch.empty_like(part) for _ in range(RANKS)], part)


def run_rank(rank: int, store: str) -> None:
    """Twelve gathers, a barrier, and the end."""
    _join(rank, store, 60.0)
    for _ in range(GATHERS):
        _gather()
    dist.barrier()
    dist.destroy_process_group()


def hang_rank(rank: int, store: str) -> None:
    """Rank 0 has left the gathers for an all-reduce; all end when gloo's time-out passes."""
    _join(rank, store, HANG_LIMIT_S)
    try:
        if rank == 0:
            dist.barrier()
        else:
            _gather()
    except RuntimeError:
        os._exit(0)
    os._exit(1)


def main(which: str) -> None:
    """Run one repetition and print its seconds."""
    spawn = multiprocessing.get_context("spawn")
    target = {"run": run_rank, "hang": hang_rank}[which]
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        begun_s = time.monotonic()
        ranks = [spawn.Process(target=target, args=(rank, store)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        seconds = time.monotonic() - begun_s
    statuses = [process.exitcode for process in ranks]
    if any(statuses):
        raise SystemExit(f"reference: expected every rank to end with 0, found {statuses}")
    print(seconds)


if __name__ == "__main__":
    main(sys.argv[1])
