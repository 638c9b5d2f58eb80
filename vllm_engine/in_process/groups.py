"""The process groups that vLLM's layers and checksums ask for, without any process.

vLLM keeps them as globals of ``vllm.distributed.parallel_state``, one worker per process. Here
every worker is a thread, so the stand-in answers with the rank of the thread that asks. Only
what a worker's *own* rank and size decide is answered: there is nothing to communicate with.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.distributed import parallel_state

_here = threading.local()  # .rank and .size of the worker whose thread this is


class _TensorParallelGroup:
    """Stands in for ``parallel_state.GroupCoordinator``: who am I, and how many are we?"""

    @property
    def rank_in_group(self) -> int:
        return int(_here.rank)

    @property
    def world_size(self) -> int:
        return int(_here.size)


class _GroupOfOne:
    rank_in_group = 0
    world_size = 1
    is_first_rank = is_last_rank = True


@contextmanager
def as_worker(rank: int, size: int) -> Iterator[None]:
    """Let this thread be tensor-parallel worker ``rank`` of ``size``, inside `standing_in`."""
    _here.rank, _here.size = rank, size
    try:
        yield
    finally:
        del _here.rank, _here.size


@contextmanager
def standing_in() -> Iterator[None]:
    """Put the stand-ins in place, and take them away once the last engine is done with them.

    Raises:
        RuntimeError: vLLM's real groups exist in this process; ours would hide them.
    """
    global _users
    stand_ins: dict[str, Any] = {"_TP": _TensorParallelGroup}
    stand_ins |= dict.fromkeys(("_PP", "_DP", "_PCP"), _GroupOfOne)
    for name, kind in stand_ins.items():
        found = getattr(parallel_state, name)
        if not _users and found is not None:
            raise RuntimeError(
                f"vllm.distributed.parallel_state.{name}: expected None, found {found!r}. Make "
                "in-process engines in a process of their own, without vLLM's real groups."
            )
        if found is None:
            setattr(parallel_state, name, kind())
    _users += 1
    try:
        yield
    finally:
        _users -= 1
        if not _users:
            for name in stand_ins:
                setattr(parallel_state, name, None)


_users = 0  # engines that exist now; all of them are made in one thread
