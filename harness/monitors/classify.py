"""What a push that does not move is: a deadlock, or one of the things that only look like one.

`classify` is a pure function of a snapshot. It says ``deadlock`` only where nothing of the target
itself can end any of the waits; everything else may end, and is named for what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.monitors import wording
from harness.monitors.graph import Hope, WaitGraph, wait_graph
from harness.monitors.proof import Row, proof_rows
from harness.monitors.snapshot import EngineAt, ProcessAt, Snapshot, Timer

# Share of a CPU from which a process that does not answer counts as running. On a loaded machine
# it gets less, but is runnable.
BUSY_CPU = 0.2
BRIEF_S = 0.1  # a wait that ends sooner than this explains no stall: the code around it repeats it


class Kind(StrEnum):
    """What a stall is."""

    DEADLOCK = "deadlock"
    WAITING = "waiting"
    CRASHED = "crashed"
    FROZEN = "frozen"
    BUSY = "busy"
    SLOW = "slow"
    STUCK = "stuck"

    @property
    def words(self) -> str:
        """As it is told: of what is only called stuck, nothing is proven."""
        return "stuck, unproven" if self is Kind.STUCK else self.value


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What a stall is, and its proof.

    Attributes:
        kind: the class.
        sentence: who waits for whom; without a full stop.
        who: the processes that the others wait for: ``rank:0``, ``engine:1``.
        rows: the proof, one row a process.
        waits: of each unfinished rank, the collectives it is in.
    """

    kind: Kind
    sentence: str
    who: tuple[str, ...]
    rows: tuple[Row, ...]
    graph: WaitGraph

    def same_as(self, other: Diagnosis | None) -> bool:
        """Whether the other says the same of the same processes in the same waits."""
        return other is not None and (self.kind, self.who, self.graph) == (
            other.kind,
            other.who,
            other.graph,
        )


def classify(snapshot: Snapshot, *, limit_passed: bool = False) -> Diagnosis | None:
    """Return what the stall is; ``None`` where nothing says yet that it will not end.

    Args:
        snapshot: taken when nothing had progressed for a while.
        limit_passed: the deadline has passed: what nothing explains is ``stuck, unproven`` then.
    """
    unfinished = snapshot.unfinished
    if not unfinished:
        return None
    graph = wait_graph(snapshot)
    if graph.lost == frozenset(unfinished):
        return _deadlock(snapshot, graph)
    for find in (_frozen, _busy, _crashed, _waiting, _sleeping):
        found = find(snapshot, graph)
        if found is not None:
            return found
    return _stuck(snapshot, graph) if limit_passed else None


def _diagnosis(
    snapshot: Snapshot, graph: WaitGraph, kind: Kind, sentence: str, who: Sequence[str]
) -> Diagnosis:
    return Diagnosis(
        kind=kind, sentence=sentence, who=tuple(who), rows=proof_rows(snapshot, graph), graph=graph
    )


def _of_ranks(
    snapshot: Snapshot, graph: WaitGraph, kind: Kind, ranks: Sequence[int], after: str = ""
) -> Diagnosis:
    """Return a diagnosis whose cause are ranks, each named with what it is in."""
    heads = "; ".join(wording.clause(snapshot, group) for group in wording.alike(snapshot, ranks))
    sentence = f"{heads}{after}{wording.while_others_wait(snapshot, graph, ranks)}"
    return _diagnosis(snapshot, graph, kind, sentence, [f"rank:{rank}" for rank in ranks])


# ---- the deadlock ----


def _deadlock(snapshot: Snapshot, graph: WaitGraph) -> Diagnosis:
    heads = _heads(snapshot, graph)
    sentence = wording.clause(snapshot, heads)
    if snapshot.ranks[heads[0]].ended is None and snapshot.ranks[heads[0]].channel is not None:
        sentence += ", and no engine is receiving,"
    sentence = (sentence + wording.while_others_wait(snapshot, graph, heads)).removesuffix(",")
    named = {*heads, *graph.missing}
    rest = [r for r, at in snapshot.ranks.items() if r not in named and _is_awaited(graph, r)]
    rest += [r for r in graph.lost if r not in named]
    for ranks in wording.alike(snapshot, rest):
        sentence += f"; {wording.clause(snapshot, ranks)}"
    end = wording.group_time_out(snapshot, sorted(graph.lost))
    if end:
        sentence += f"; only {end}, would end it"
    return _diagnosis(snapshot, graph, Kind.DEADLOCK, sentence, [f"rank:{r}" for r in heads])


def _is_awaited(graph: WaitGraph, rank: int) -> bool:
    return any(rank in missing for missing in graph.missing.values())


def _heads(snapshot: Snapshot, graph: WaitGraph) -> tuple[int, ...]:
    """Return the ranks, all at one place, that most others wait for; of several those that ended,
    and of those the lowest."""
    awaited = [rank for rank in snapshot.ranks if _is_awaited(graph, rank)]
    groups = wording.alike(snapshot, awaited or sorted(graph.lost))
    return min(
        groups,
        key=lambda ranks: (
            -len(graph.waiters(ranks)),
            snapshot.ranks[ranks[0]].ended is None,
            ranks[0],
        ),
    )


# ---- what only looks like one ----


def _hoping(graph: WaitGraph, snapshot: Snapshot, hope: Hope) -> list[int]:
    return [rank for rank in snapshot.unfinished if graph.hopes.get(rank) == hope]


def _engine_waits(snapshot: Snapshot) -> dict[int, list[int]]:
    """Return engine -> the unfinished ranks that wait for it, by a request or on the channel."""
    waits: dict[int, list[int]] = {}
    for rank in snapshot.unfinished:
        at = snapshot.ranks[rank]
        engines = {timer.engine for timer in at.timers if timer.engine is not None}
        if at.channel is not None:
            engines |= set(snapshot.engines)
        for engine in engines & set(snapshot.engines):
            waits.setdefault(engine, []).append(rank)
    if snapshot.unclaimed:
        for index, engine_at in snapshot.engines.items():
            if engine_at.requests:
                waits.setdefault(index, [])
    return waits


def _of_engine(
    snapshot: Snapshot, graph: WaitGraph, kind: Kind, index: int, what: str
) -> Diagnosis:
    ranks = _engine_waits(snapshot)[index]
    waits = ""
    if ranks:
        waits = f" while {wording.ranks_in_words(ranks)} {'wait' if len(ranks) > 1 else 'waits'}"
        timers = [t for rank in ranks for t in snapshot.ranks[rank].timers if t.engine == index]
        waits += " for it" if not timers else f" for {_ending(snapshot, timers)}"
        waits += wording.while_others_wait(snapshot, graph, ranks).replace(" while", ", and", 1)
    return _diagnosis(snapshot, graph, kind, f"engine {index} {what}{waits}", [f"engine:{index}"])


def _ending(snapshot: Snapshot, timers: Sequence[Timer]) -> str:
    """Name the wait that ends first, and what ends it when."""
    first = min(timers, key=lambda timer: (timer.ends_s is None, timer.ends_s or 0.0))
    return f"{first.what} ({wording.timer_in_words(first, at_s=snapshot.at_s)}, ends that)"


def _frozen(snapshot: Snapshot, graph: WaitGraph) -> Diagnosis | None:
    ranks = _hoping(graph, snapshot, "stopped")
    if ranks:
        return _of_ranks(snapshot, graph, Kind.FROZEN, ranks, _time_out(snapshot, graph))
    for index in _engine_waits(snapshot):
        if snapshot.engines[index].process.is_stopped:
            return _of_engine(snapshot, graph, Kind.FROZEN, index, "is stopped")
    return None


def _busy(snapshot: Snapshot, graph: WaitGraph) -> Diagnosis | None:
    def runs(process: ProcessAt) -> bool:
        cpu = process.cpu or 0.0
        return cpu >= BUSY_CPU or (process.runnable and cpu > 0.0)

    ranks = [
        rank for rank in _hoping(graph, snapshot, "mute") if runs(snapshot.ranks[rank].process)
    ]
    holds = "one of its threads holds the GIL"
    if ranks:
        after = f": {holds if len(ranks) == 1 else 'in each a thread holds the GIL'}"
        after += _time_out(snapshot, graph)
        return _of_ranks(snapshot, graph, Kind.BUSY, ranks, after)
    for index in _engine_waits(snapshot):
        engine = snapshot.engines[index]
        if engine.answers is False and runs(engine.process):
            what = "runs and does not answer: a thread holds the GIL, or its front end loops,"
            return _of_engine(snapshot, graph, Kind.BUSY, index, what)
    return None


def _time_out(snapshot: Snapshot, graph: WaitGraph) -> str:
    """Return which time-out of a process group frees those who wait, in brackets."""
    end = wording.group_time_out(snapshot, [rank for rank, gone in graph.missing.items() if gone])
    return f" ({end}, frees the others)" if end else ""


def _crashed(snapshot: Snapshot, graph: WaitGraph) -> Diagnosis | None:
    for index in _engine_waits(snapshot):
        status = snapshot.engines[index].exit_status
        if status is not None:
            what = f"has ended with status {status}"
            return _of_engine(snapshot, graph, Kind.CRASHED, index, what)
    return None


def _waiting(snapshot: Snapshot, graph: WaitGraph) -> Diagnosis | None:
    for rank in _hoping(graph, snapshot, "timer"):
        timers = snapshot.ranks[rank].timers
        if timers:
            return _of_timers(snapshot, graph, rank, timers)
    if snapshot.unclaimed:
        what = " and ".join(sorted(set(snapshot.unclaimed)))
        sentence = f"a request is not answered ({what}), whose limit the target does not tell"
        sentence += wording.while_others_wait(snapshot, graph, ())
        return _diagnosis(snapshot, graph, Kind.WAITING, sentence, [])
    for rank in _hoping(graph, snapshot, "code"):
        process = snapshot.ranks[rank].process
        left_s = _left_s(snapshot, rank)
        if process.wait in ("lock", "poll") and left_s is not None:
            timer = Timer(what="a lock or an event", ends_s=process.ends_s)
            return _of_timers(snapshot, graph, rank, [timer])
    return None


def _of_timers(
    snapshot: Snapshot, graph: WaitGraph, rank: int, timers: Sequence[Timer]
) -> Diagnosis:
    engines = sorted({timer.engine for timer in timers if timer.engine is not None})
    where = ""
    for engine in engines:
        held = engine_call(snapshot.engines.get(engine))
        where += f"; in engine {engine} {held}" if held else ""
    sentence = (
        f"rank {rank} waits for {_ending(snapshot, timers)}"
        f"{wording.while_others_wait(snapshot, graph, [rank])}{where}"
    )
    who = [f"engine:{engine}" for engine in engines] or [f"rank:{rank}"]
    return _diagnosis(snapshot, graph, Kind.WAITING, sentence, who)


def engine_call(engine: EngineAt | None) -> str:
    """Return which worker of an engine is in which call, or that it is silent; else nothing."""
    if engine is None:
        return ""
    if engine.answers is False:
        return "nobody answers, and its process is idle"
    is_working = any(worker.call for worker in engine.workers)
    return wording.engine_in_words(engine).replace("; ", " and ") if is_working else ""


def _left_s(snapshot: Snapshot, rank: int) -> float | None:
    """Return how long the kernel lets a rank wait; ``None`` for no limit, or for a brief one."""
    ends_s = snapshot.ranks[rank].process.ends_s
    if ends_s is None or ends_s - snapshot.at_s < BRIEF_S:
        return None
    return ends_s - snapshot.at_s


def _sleeping(snapshot: Snapshot, graph: WaitGraph) -> Diagnosis | None:
    """A rank that sleeps will go on, later than its peers."""
    ranks = [
        rank
        for rank in _hoping(graph, snapshot, "code")
        if snapshot.ranks[rank].process.wait == "sleep" and _left_s(snapshot, rank) is not None
    ]
    if not ranks:
        return None
    left_s = max(_left_s(snapshot, rank) or 0.0 for rank in ranks)
    kind = Kind.SLOW if graph.waiters(tuple(ranks)) else Kind.WAITING
    return _of_ranks(snapshot, graph, kind, ranks, f" for another {wording.span_in_words(left_s)}")


def slow(snapshot: Snapshot, *, waited_s: float) -> Diagnosis | None:
    """Return the diagnosis of a stall that has ended: who kept the others waiting, and how long.

    Args:
        snapshot: one taken while it lasted.
        waited_s: how long nothing progressed.

    Returns:
        ``None`` where the snapshot does not show that ranks waited for others that were at work.
    """
    graph = wait_graph(snapshot)
    ranks = _hoping(graph, snapshot, "code")
    if not graph.waiters(tuple(ranks)):
        return None
    was = "was" if len(ranks) == 1 else "were"
    others = wording.while_others_wait(snapshot, graph, ranks)
    work = f"{was} at work for {wording.span_in_words(waited_s)}"
    sentence = f"{wording.ranks_in_words(ranks)} {work}{others}"
    return _diagnosis(snapshot, graph, Kind.SLOW, sentence, [f"rank:{rank}" for rank in ranks])


def _stuck(snapshot: Snapshot, graph: WaitGraph) -> Diagnosis:
    causes = [
        rank
        for rank in snapshot.unfinished
        if graph.hopes.get(rank) in ("code", "mute", "meeting", "receiver")
        and not graph.missing.get(rank)
    ]
    return _of_ranks(snapshot, graph, Kind.STUCK, causes or snapshot.unfinished)
