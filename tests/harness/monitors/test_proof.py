"""The proof as it is read: processes that are alike in one row, and what concerns them below."""

from __future__ import annotations

from harness.monitors.proof import MAX_GROUPS, Row, in_groups

IN_REDUCE = "is in all_reduce #7 of the agreement group"
IN_GATHER = "is in all_gather #3 of the tp group"
TENSOR = "layers.0.mlp.up_proj.weight"


def _gathers(rank: int, until: str = "-") -> Row:
    return Row(
        who=f"rank {rank}",
        at=IN_GATHER,
        shape="[4, 2]",
        tensor=TENSOR,
        waits_for=f"rank 0, which {IN_REDUCE}",
        until=until,
    )


def test_in_groups() -> None:
    """Ranks in one call are one row; their ends may differ a little, one stack stands for all."""
    rows = [
        Row(who="rank 0", at=IN_REDUCE, shape="[1]", waits_for="ranks 1-3, which gather"),
        _gathers(1, "the 30 s time-out, in 29.8 s"),
        _gathers(2, "the 30 s time-out, in 29.7 s"),
        _gathers(3),
    ]
    heads = {"rank 0": "push (sketch.py:7)", "rank 2": "gather (source.py:9)"}
    assert in_groups(rows, heads).splitlines() == [
        "who        in                                    shape   tensor",
        "rank 0     all_reduce #7 of the agreement group  [1]     -",
        "           waits for ranks 1-3, which gather",
        "           at push (sketch.py:7)",
        "ranks 1-3  all_gather #3 of the tp group         [4, 2]  layers.0.mlp.up_proj.weight",
        "           waits for rank 0, which is in all_reduce #7 of the agreement group",
        "           until the 30 s time-out, in 29.8 s",
        "           at gather (source.py:9)",
    ]


def test_engines_and_the_ended() -> None:
    """Engines say what they have not answered; who has ended waits for nobody."""
    rows = [
        Row(who="rank 0", at="has returned"),
        Row(who="engine 0", at="is idle", shape="session open", waits_for="answers: -"),
        Row(who="engine 1", at="worker 0 is in load", waits_for="answers: engine.update"),
        Row(who="engine 2", at="is idle", shape="session open", waits_for="answers: -"),
    ]
    assert in_groups(rows, {}).splitlines() == [
        "who           in                   shape         tensor",
        "rank 0        has returned         -             -",
        "engines 0, 2  is idle              session open  -",
        "engine 1      worker 0 is in load  -             -",
        "              has not answered engine.update",
    ]


def test_many_groups() -> None:
    """A proof is short: of many groups it shows some, and says how many more there are."""
    rows = [Row(who=f"rank {n}", at=f"is in barrier #{n}") for n in range(MAX_GROUPS + 3)]
    *shown, last = in_groups(rows, {}).splitlines()
    assert len(shown) == MAX_GROUPS + 1
    assert last == "and 3 more; the journal has all"
