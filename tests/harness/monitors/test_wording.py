"""How ranks and groups are named."""

from __future__ import annotations

import pytest

from harness.monitors.snapshot import Collective, RankAt
from harness.monitors.wording import group_in_words, rank_in_full, ranks_in_words


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "rank 3"),
        ([1, 2, 3], "ranks 1-3"),
        ([2, 1], "ranks 1-2"),
        ([0, 2], "ranks 0, 2"),
    ],
)
def test_ranks_in_words(ranks: list[int], words: str) -> None:
    """Ranks in a row are told as a range."""
    assert ranks_in_words(ranks) == words


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("default_pg", "the default group"),
        ("undefined", "the group of ranks 0-1"),
        ("", "the group of ranks 0-1"),
        ("resync_agreement", "the agreement group"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "the TENSOR MODEL PARALLEL GROUP group"),
    ],
)
def test_group_in_words(label: str, words: str) -> None:
    """A group is named by what it was made for, or else by its members."""
    assert group_in_words(_collective(label=label)) == words


def _collective(op: str = "all_gather", *, label: str = "default_pg") -> Collective:
    return Collective(ranks=(0, 1), label=label, seq=1, op=op)


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (RankAt(), "is in no collective"),
        (RankAt(channel=1), "waits for the other end of the channel"),
        (
            RankAt(collectives=(_collective(),), tensor="embed"),
            "is in all_gather #1 of the default group (gather of embed)",
        ),
        (
            RankAt(
                collectives=(_collective("broadcast"), _collective("all_reduce", label="agree"))
            ),
            "is in all_reduce #1 of the agree group",
        ),
        (RankAt(ended="has raised"), "has raised"),
        (RankAt(answers=False), "does not answer"),
    ],
)
def test_rank_in_full(at: RankAt, words: str) -> None:
    """The last collective is the one that a rank is in."""
    assert rank_in_full(at) == words
