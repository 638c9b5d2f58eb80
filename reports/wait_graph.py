"""The wait-for graph of a hang: who waits for whom, ready to be drawn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from reports.phrases import visible

_NAMED = re.compile(r"\b(ranks?|engines?) (\d+(?:-\d+)?(?:(?:,| and) \d+(?:-\d+)?)*)")
MAX_MEMBERS = 4_096  # of one range: a journal may say anything


def graph_of(halt: Mapping[str, Any]) -> dict[str, Any]:
    """Return nodes and edges of a ``halt`` event's table.

    Processes that are in the same call and wait for the same ones are one node.

    Returns:
        ``{"sentence", "nodes": [{"id", "who", "members", "at", "detail", "until"}],
        "edges": [[id, id]]}``.
    """
    table = halt.get("table")
    rows = [row for row in table if isinstance(row, Mapping)] if isinstance(table, list) else []
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        alike = tuple(str(row.get(k, "-")) for k in ("at", "shape", "tensor", "waits_for", "until"))
        groups.setdefault(alike, []).append(str(row.get("who", "?")))
    home = {who: number for number, members in enumerate(groups.values()) for who in members}
    edges = []
    for number, (_, _, _, waits_for, _) in enumerate(groups):
        # Only whom it waits for itself: what these are in follows "which".
        whom = [who for part in waits_for.split(";") for who in _names(part.partition("which")[0])]
        if waits_for.startswith("the engines"):
            whom = [who for who in home if who.startswith("engine")]
        ends = dict.fromkeys(home[who] for who in whom if who in home)
        edges += [[number, end] for end in ends]
    nodes = [
        {
            "id": number,
            "who": visible(_together(members)),
            "members": [visible(member.replace(" ", ":")) for member in members],
            "at": visible(alike[0]),
            "detail": visible(", ".join(each for each in alike[1:3] if each != "-")),
            "waits": visible(alike[3]),
            "until": visible(alike[4]),
        }
        for number, (alike, members) in enumerate(groups.items())
    ]
    return {"sentence": visible(str(halt.get("sentence", ""))), "nodes": nodes, "edges": edges}


def _names(text: str) -> list[str]:
    """Return ``rank 1``, ``rank 2``, ``rank 5`` of ``ranks 1-2, 5``."""
    names = []
    for role, numbers in _NAMED.findall(text):
        for part in re.split(r",| and ", numbers):
            first, _, last = part.strip().partition("-")
            for number in range(int(first), min(int(last or first), int(first) + MAX_MEMBERS) + 1):
                names.append(f"{role.rstrip('s')} {number}")
    return names


def _together(members: Sequence[str]) -> str:
    """Return ``ranks 1-3`` for its members; names that are no numbers of one role stay apart."""
    roles = {member.rpartition(" ")[0] for member in members}
    numbers = [member.rpartition(" ")[2] for member in members]
    if len(members) == 1 or len(roles) != 1 or not all(n.isdecimal() for n in numbers):
        return ", ".join(members)
    ordered = sorted(map(int, numbers))
    (role,) = roles
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{role}s {ordered[0]}-{ordered[-1]}"
    return f"{role}s {', '.join(map(str, ordered))}"
