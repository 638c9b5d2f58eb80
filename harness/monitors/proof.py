"""The table behind a diagnosis: every process, the call that it is in, and whom it waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.monitors import wording
from harness.monitors.graph import WaitGraph
from harness.monitors.snapshot import Snapshot

MAX_GROUPS = 8  # of processes alike, in the text that is to be read
WIDTHS = (14, 44, 12, 48)  # of its columns, at most


@dataclass(frozen=True, kw_only=True)
class Row:
    """One process of the proof. Every field is text, ``-`` where there is nothing to say."""

    who: str
    at: str
    shape: str = "-"
    tensor: str = "-"
    waits_for: str = "-"
    until: str = "-"


def in_groups(rows: Sequence[Row], heads: Mapping[str, str]) -> str:
    """Return the rows as text to be read: a heading, and those alike as one, with whom they wait
    for and where their code is below.

    Args:
        rows: of one diagnosis.
        heads: ``rank 3`` or ``engine 0`` -> the head of its stack, where it is known.
    """
    groups: dict[Row, list[str]] = {}
    for row in rows:
        groups.setdefault(replace(row, who="", until=""), []).append(row.who)
    lines = [("who", "in", "shape", "tensor")]
    below: list[Sequence[str]] = [()]
    untils = {row.who: row.until for row in rows}
    for row, members in list(groups.items())[:MAX_GROUPS]:
        lines.append((_together(members), row.at.removeprefix("is in "), row.shape, row.tensor))
        below.append(tuple(_below(row, members, untils, heads)))
    columns = zip(zip(*lines, strict=True), WIDTHS, strict=True)
    widths = [min(max(map(len, column)), limit) for column, limit in columns]
    text = []
    for cells, more in zip(lines, below, strict=True):
        text.append("  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip())
        text += (f"{'':{widths[0]}}  {each}" for each in more)
    if len(groups) > MAX_GROUPS:
        text.append(f"and {len(groups) - MAX_GROUPS} more; the journal has all")
    return "\n".join(text)


def _together(members: Sequence[str]) -> str:
    """Return several processes as one: ``ranks 1-3``; those of other roles stay apart."""
    role, _, _ = members[0].partition(" ")
    if len(members) == 1 or any(not member.startswith(f"{role} ") for member in members):
        return ", ".join(members)
    numbers = [int(member.removeprefix(f"{role} ")) for member in members]
    return wording.ranks_in_words(numbers).replace("rank", role, 1)


def _below(
    row: Row, members: Sequence[str], untils: Mapping[str, str], heads: Mapping[str, str]
) -> Iterator[str]:
    if row.waits_for.startswith("answers: "):
        if not row.waits_for.endswith(" -"):
            yield row.waits_for.replace("answers:", "has not answered", 1)
    elif row.waits_for != "-":
        yield f"waits for {row.waits_for}"
    if untils[members[0]] != "-":
        yield f"until {untils[members[0]]}"
    if head := next(filter(None, (heads.get(member) for member in members)), ""):
        yield f"at {head}"


def proof_rows(snapshot: Snapshot, graph: WaitGraph) -> tuple[Row, ...]:
    """Return a row for every rank, and for every engine that was asked or has ended."""
    rows = [_rank_row(snapshot, graph, rank) for rank in sorted(snapshot.ranks)]
    for index, engine in sorted(snapshot.engines.items()):
        if engine.answers is None and engine.exit_status is None:
            continue
        requests = ", ".join(engine.requests) or "-"
        row = Row(who=f"engine {index}", at=wording.engine_in_words(engine))
        session = wording.session_in_words(engine)
        rows.append(replace(row, shape=f"session {session}", waits_for=f"answers: {requests}"))
    return tuple(rows)


def _rank_row(snapshot: Snapshot, graph: WaitGraph, rank: int) -> Row:
    at = snapshot.ranks[rank]
    row = Row(who=f"rank {rank}", at=wording.rank_in_full(replace(at, tensor=None)))
    if at.ended is not None:
        return row
    until = [f"{t.what}: {wording.timer_in_words(t, at_s=snapshot.at_s)}" for t in at.timers]
    if at.collectives:
        row = replace(row, shape=" ".join(str(list(size)) for size in at.collectives[-1].sizes))
        until.append(wording.group_time_out(snapshot, [rank]))
    missing = graph.missing.get(rank, ())
    waits_for = "; ".join(
        f"{wording.ranks_in_words(ranks)}, {_elsewhere(snapshot, ranks)}"
        for ranks in wording.alike(snapshot, [m for m in missing if m in snapshot.ranks])
    )
    if at.channel is not None and not at.collectives:
        waits_for = "the engines"
    return replace(
        row,
        shape=row.shape or "-",
        tensor=at.tensor or "-",
        waits_for=waits_for or "-",
        until="; ".join(filter(None, until)) or "-",
    )


def _elsewhere(snapshot: Snapshot, ranks: Sequence[int]) -> str:
    """Return the call that missing ranks are in instead."""
    said = wording.clause(snapshot, ranks)
    return f"which {said.removeprefix(wording.ranks_in_words(ranks)).strip()}"
