"""How the monitor says where ranks are and whom they wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.monitors.graph import WaitGraph
from harness.monitors.snapshot import Collective, EngineAt, RankAt, Snapshot, Timer

_DEFAULT_GROUP = "default_pg"  # torch's names
_NAMELESS = ("", "undefined")


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 1-3`` or ``ranks 0, 2``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    ordered = sorted(ranks)
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"ranks {ordered[0]}-{ordered[-1]}"
    return f"ranks {', '.join(map(str, ordered))}"


def group_in_words(collective: Collective) -> str:
    """Return ``the default group``, ``the agreement group`` or ``the group of ranks 0-1``."""
    if collective.label == _DEFAULT_GROUP:
        return "the default group"
    if collective.label in _NAMELESS:
        return f"the group of {ranks_in_words(collective.ranks)}" if collective.ranks else "a group"
    return f"the {collective.label.removeprefix('resync_').replace('_', ' ')} group"


def collective_in_words(collective: Collective) -> str:
    """Return ``all_reduce #7 of the agreement group``."""
    return f"{collective.op} #{collective.seq} of {group_in_words(collective)}"


def place_in_words(at: RankAt) -> str | None:
    """Return the call that a rank is in, shortly: ``the gather of embed``; ``None`` for no call."""
    if not at.collectives:
        return None
    if at.tensor is not None:
        return f"the gather of {at.tensor}"
    return collective_in_words(at.collectives[-1])


def rank_in_full(at: RankAt) -> str:
    """Return where one rank is, with all that names its call: ``is in all_gather #1 of ...``."""
    if at.ended is not None:
        return at.ended
    if at.collectives:
        tensor = f" (gather of {at.tensor})" if at.tensor else ""
        return f"is in {collective_in_words(at.collectives[-1])}{tensor}"
    if at.channel is not None:
        return "waits for the other end of the channel"
    if at.timers:
        return f"waits for {_timers_in_words(at.timers)}"
    return _is_in_no_call(at)


def _is_in_no_call(at: RankAt, *, plural: bool = False) -> str:
    are = "are" if plural else "is"
    process = at.process
    if process.is_stopped:
        return f"{are} stopped"
    if not at.answers:
        cpu = process.cpu
        return f"{'do' if plural else 'does'} not answer" + (
            f", using {cpu:.0%} of a CPU" if cpu is not None else ""
        )
    known = {
        "sleep": f"{'sleep' if plural else 'sleeps'}",
        "lock": f"{'wait' if plural else 'waits'} for a lock"
        + ("" if process.ends_s is not None else " without a limit"),
        "poll": f"{'wait' if plural else 'waits'} for a socket or a pipe",
    }
    doing = known.get(process.wait or "")
    return f"{are} in no collective" + (f" and {doing}" if doing else "")


def _timers_in_words(timers: Sequence[Timer]) -> str:
    return " and ".join(timer.what for timer in timers)


def span_in_words(seconds: float) -> str:
    """Return ``29.8 s`` or ``1200 s``; never less than nothing."""
    return f"{max(seconds, 0.0):.{1 if seconds < 100 else 0}f} s"


def timer_in_words(timer: Timer, *, at_s: float) -> str:
    """Return what ends a wait, and when: ``its limit of 2 s, in 1.8 s``."""
    limit = "its client's limit, which is not known"
    if timer.limit_s is not None:
        limit = f"its limit of {timer.limit_s:g} s"
    elif timer.ends_s is not None:
        limit = "its own limit"
    return limit if timer.ends_s is None else f"{limit}, in {span_in_words(timer.ends_s - at_s)}"


def group_time_out(snapshot: Snapshot, ranks: Sequence[int]) -> str:
    """Return which process group's time-out ends the first of the ranks' collectives, and when.

    Empty where none is known.
    """
    waits = [
        (collective.ends_s, collective)
        for rank in ranks
        for collective in snapshot.ranks[rank].collectives
        if collective.ends_s is not None and collective.timeout_s is not None
    ]
    if not waits:
        return ""
    ends_s, first = min(waits, key=lambda wait: wait[0])
    return (
        f"the {first.timeout_s:g} s time-out of {group_in_words(first)}, "
        f"in {span_in_words(ends_s - snapshot.at_s)}"
    )


def standing(at: RankAt, *, plural: bool = False) -> str:
    """Return where a rank is, shortly, after its name: ``is in the gather of embed``."""
    if at.ended is not None:
        return at.ended.replace("has ", "have ", 1) if plural else at.ended
    if at.answers and not at.process.is_stopped:
        place = place_in_words(at)
        if place is not None:
            return f"{'are' if plural else 'is'} in {place}"
        if at.channel is not None:
            return f"{'wait' if plural else 'waits'} for the other end of the channel"
    return _is_in_no_call(at, plural=plural)


def clause(snapshot: Snapshot, ranks: Sequence[int]) -> str:
    """Return where these ranks, which are at one place, are: ``ranks 1-2 are in the gather ...``.

    Args:
        ranks: not empty, in the same call or ended alike.
    """
    return f"{ranks_in_words(ranks)} {standing(snapshot.ranks[ranks[0]], plural=len(ranks) > 1)}"


def alike(snapshot: Snapshot, ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the ranks in groups of those at one place, each ascending, by their lowest."""
    groups: dict[object, list[int]] = {}
    for rank in sorted(ranks):
        at = snapshot.ranks[rank]
        place = (standing(at), tuple(collective.key for collective in at.collectives))
        groups.setdefault(place, []).append(rank)
    return [tuple(group) for group in groups.values()]


def while_others_wait(snapshot: Snapshot, graph: WaitGraph, heads: Sequence[int]) -> str:
    """Return `` while ranks 1-3 wait for it in ...``: who waits, because of ``heads``, in what.

    Everybody who is in a collective that misses somebody is named, heads excepted.
    """
    for_heads, for_others = [], []
    waiting = [rank for rank, missing in graph.missing.items() if missing and rank not in heads]
    for ranks in alike(snapshot, waiting):
        missing = sorted({each for rank in ranks for each in graph.missing[rank]} - set(ranks))
        wait = f"{ranks_in_words(ranks)} {'waits' if len(ranks) == 1 else 'wait'} for"
        place = place_in_words(snapshot.ranks[ranks[0]])
        if missing == sorted(heads):
            for_heads.append(f"{wait} {'it' if len(missing) == 1 else 'them'} in {place}")
        else:
            whom = ranks_in_words(missing) if missing else "each other"
            for_others.append(f"{wait} {whom} in {place}")
    parts = for_heads + for_others
    return f" while {' and '.join(parts)}" if parts else ""


def engine_in_words(engine: EngineAt) -> str:
    """Return where an engine is, for the table."""
    if engine.exit_status is not None:
        return f"has ended with status {engine.exit_status}"
    if engine.process.is_stopped:
        return "is stopped"
    if engine.answers is False:
        return "does not answer"
    calls = [f"worker {i} is in {w.call}" for i, w in enumerate(engine.workers) if w.call]
    return "; ".join(calls) or "is idle"


def session_in_words(engine: EngineAt) -> str:
    """Return which of an engine's sessions are open, for the table."""
    known: Mapping[bool | None, str] = {True: "open", False: "closed", None: "-"}
    return ", ".join(known[worker.active] for worker in engine.workers) or "-"
