"""The table behind a diagnosis: every process, the call that it is in, and whom it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace

from harness.monitors import wording
from harness.monitors.graph import WaitGraph
from harness.monitors.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True)
class Row:
    """One process of the proof. Every field is text, ``-`` where there is nothing to say."""

    who: str
    at: str
    shape: str = "-"
    tensor: str = "-"
    waits_for: str = "-"
    until: str = "-"


def in_columns(rows: Sequence[Row]) -> str:
    """Return the rows as text: a heading, then one line each, in columns. Lines may be long."""
    heading = tuple(field.name.replace("_", " ") for field in fields(Row))
    lines = [heading, *(astuple(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


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
