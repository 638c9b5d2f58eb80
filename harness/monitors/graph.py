"""The wait-for graph of a snapshot: whom each rank waits for, and who can never move again.

A rank in a collective waits for *all* of its members that have not entered it, so one that never
comes is enough. A rank is taken for lost only if every wait that it is in is; whatever could free
it (a timer of its own, code that runs, a process that was stopped and may be continued) spares it.
The time-out of a process group does not: it ends a push by killing it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.monitors.snapshot import Collective, EngineAt, Key, Snapshot

# Why a rank may move again by itself.
Hope = Literal[
    "timer",  # a request or another wait that ends by itself
    "code",  # it is in no wait that is known
    "mute",  # the thread that tells of it does not answer
    "stopped",  # the process may be continued
    "leaving",  # it has raised, and the end of its process frees others
    "meeting",  # every member of its collective is there
    "receiver",  # a worker of an engine may come to receive
]


@dataclass(frozen=True, kw_only=True)
class WaitGraph:
    """Who waits for whom.

    Attributes:
        missing: rank -> the members that have not entered the collective that it entered last.
        hopes: rank -> why it may move by itself, of those that may.
        lost: the ranks that can never move again.
        waits: rank -> the collectives it is in; two snapshots with the same did not move between.
    """

    missing: Mapping[int, tuple[int, ...]]
    hopes: Mapping[int, Hope]
    lost: frozenset[int]
    waits: Mapping[int, tuple[Key, ...]]

    def waiters(self, ranks: tuple[int, ...]) -> list[int]:
        """Return the ranks, outside ``ranks``, that wait for one of them, ascending."""
        return sorted(
            rank
            for rank, missing in self.missing.items()
            if rank not in ranks and set(missing) & set(ranks)
        )


def wait_graph(snapshot: Snapshot) -> WaitGraph:
    """Draw the graph."""
    unfinished = snapshot.unfinished
    absent = {
        rank: [_absent(snapshot, rank, at) for at in snapshot.ranks[rank].collectives]
        for rank in unfinished
    }
    hopes: dict[int, Hope] = {}
    for rank in sorted(snapshot.ranks):
        hope = _hope(snapshot, rank, absent.get(rank, []))
        if hope is not None:
            hopes[rank] = hope
    return WaitGraph(
        missing={rank: sets[-1] for rank, sets in absent.items() if sets},
        hopes=hopes,
        lost=_lost(unfinished, absent, hopes),
        waits={rank: tuple(c.key for c in snapshot.ranks[rank].collectives) for rank in unfinished},
    )


def _absent(snapshot: Snapshot, rank: int, collective: Collective) -> tuple[int, ...]:
    """Return the members of a rank's collective that have not entered it."""
    ranks = snapshot.ranks
    return tuple(
        member
        for member in collective.ranks
        if member != rank and not (member in ranks and ranks[member].has_entered(collective))
    )


def _hope(snapshot: Snapshot, rank: int, absent: Sequence[tuple[int, ...]]) -> Hope | None:
    at = snapshot.ranks[rank]
    if at.ended is not None:
        return "leaving" if at.leaving else None
    if at.process.is_stopped:
        return "stopped"
    if not at.answers:
        return "mute"
    if at.timers or snapshot.unclaimed:
        return "timer"
    if at.process.is_in_no_endless_wait:
        return "code"  # the collectives that it is in are another thread's
    if at.collectives:
        return None if all(absent) else "meeting"
    if at.channel is not None:
        return "receiver" if _may_be_received(snapshot) else None
    return "code"


def _may_be_received(snapshot: Snapshot) -> bool:
    """Whether every engine's workers may be receiving, or on their way to it.

    One engine that will not come is enough for a wait without end.
    """
    return bool(snapshot.engines) and all(map(_may_receive, snapshot.engines.values()))


def _may_receive(engine: EngineAt) -> bool:
    if engine.exit_status is not None:
        return False
    if engine.answers is False:
        return True  # nobody knows
    return bool(engine.workers) and all(worker.call is not None for worker in engine.workers)


def _lost(
    unfinished: list[int],
    absent: Mapping[int, Sequence[tuple[int, ...]]],
    hopes: Mapping[int, Hope],
) -> frozenset[int]:
    """Return the ranks for which there is no hope: what is left when hope has spread.

    It spreads to a rank once everybody whom one of its collectives misses has hope.
    """
    hopeful = set(hopes)
    pending = [rank for rank in unfinished if rank not in hopeful]
    while True:
        freed = [
            rank
            for rank in pending
            if any(missing and hopeful.issuperset(missing) for missing in absent[rank])
        ]
        if not freed:
            return frozenset(pending)
        hopeful.update(freed)
        pending = [rank for rank in pending if rank not in hopeful]
