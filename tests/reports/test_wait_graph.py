"""The wait-for graph of a halt: nodes, edges, and who is named."""

from __future__ import annotations

from typing import Any

from reports.wait_graph import graph_of


def row(who: str, at: str, waits_for: str = "-") -> dict[str, str]:
    return {
        "who": who,
        "at": at,
        "shape": "[1]",
        "tensor": "-",
        "waits_for": waits_for,
        "until": "-",
    }


def edges(graph: dict[str, Any]) -> list[tuple[str, str]]:
    names = {node["id"]: node["who"] for node in graph["nodes"]}
    return [(names[a], names[b]) for a, b in graph["edges"]]


def test_a_cycle() -> None:
    """Ranks in the same call are one node, and only those waited for are edges."""
    other = "rank 0, which is in the gather of embed while rank 3 waits"
    first = "ranks 1-2, which are in the gather; rank 3, which has left"
    graph = graph_of(
        {
            "sentence": "rank 0 is in all_reduce",
            "table": [
                row("rank 0", "is in all_reduce", first),
                row("rank 1", "is in all_gather", other),
                row("rank 2", "is in all_gather", other),
                row("rank 3", "has left"),
                row("engine 0", "is idle", "answers: update"),
            ],
        }
    )  # fmt: skip
    assert [node["who"] for node in graph["nodes"]] == ["rank 0", "ranks 1-2", "rank 3", "engine 0"]
    assert edges(graph) == [("rank 0", "ranks 1-2"), ("rank 0", "rank 3"), ("ranks 1-2", "rank 0")]
    assert graph["nodes"][1]["members"] == ["rank:1", "rank:2"]


def test_lists_and_the_engines() -> None:
    """``ranks 0, 2`` are two, and ``the engines`` are all of them."""
    graph = graph_of(
        {"table": [row("rank 0", "a"), row("rank 2", "b"), row("engine 0", "c"),
                   row("rank 1", "d", "ranks 0, 2, which are elsewhere"),
                   row("rank 3", "e", "the engines")]}
    )  # fmt: skip
    assert edges(graph) == [("rank 1", "rank 0"), ("rank 1", "rank 2"), ("rank 3", "engine 0")]


def test_nonsense_is_no_graph() -> None:
    """A table that is none, and a range without an end, draw nothing and raise nothing."""
    assert graph_of({"table": [1, "x"]})["nodes"] == []
    assert graph_of({"table": -1})["nodes"] == []
    assert graph_of({"table": [row("rank 0", "a", "ranks 0-99999999999")]})["edges"] == [[0, 0]]
