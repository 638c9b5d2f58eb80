"""When ranks that do not move cannot move any more, and how it is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from harness.monitors.deadlock import Blocked, find_deadlock, ranks_in_words

IN_NONE = Blocked(())
ON_CHANNEL = Blocked((), channel=True)


def _collective(
    op: str, seq: int = 1, *, label: str = "default_pg", ranks: tuple[int, ...] = (0, 1, 2)
) -> dict[str, Any]:
    return {"op": op, "seq": seq, "label": label, "ranks": list(ranks), "group": "0", "sizes": []}


def _at(
    op: str, seq: int = 1, *, label: str = "default_pg", ranks: tuple[int, ...] = (0, 1, 2)
) -> Blocked:
    return Blocked((_collective(op, seq, label=label, ranks=ranks),))


PAIR = (0, 1)
GATHER = Blocked((_collective("all_gather"),), tensor="embed")
PAIR_GATHER = Blocked((_collective("all_gather", label="undefined", ranks=PAIR),), tensor="embed")
# One that was entered before, and that the third rank has left out, is pending too.
OLDER = _collective("broadcast", 4)
BOTH_PENDING = Blocked((OLDER, _collective("all_reduce", label="agree", ranks=PAIR)))
OLDER_PENDING = Blocked((OLDER,))

# fmt: off
CASES = [
    # id, blocked, elsewhere, the deadlock (None: it may still move)
    ("nobody-waits", {}, {0: "has returned"}, None),
    ("everybody-is-there", {0: GATHER, 1: GATHER, 2: GATHER}, {}, None),
    ("under-way-in-one-group-of-two",
     {0: PAIR_GATHER, 1: PAIR_GATHER, 2: _at("barrier")}, {}, None),
    ("one-is-in-no-collective", {0: IN_NONE, 1: GATHER, 2: GATHER}, {}, None),
    ("all-in-none", {0: IN_NONE, 1: IN_NONE, 2: IN_NONE}, {}, None),
    ("members-unknown", {0: _at("barrier", ranks=())}, {1: "has returned"}, None),

    ("sender-is-in-the-agreement", {0: _at("all_reduce", 2), 1: GATHER, 2: GATHER}, {},
     "rank 0 is in all_reduce #2 of the default group; ranks 1-2 are in all_gather #1 of the "
     "default group (gather of embed); each waits for ranks 0-2, which will not come"),
    ("same-number-different-operation",
     {0: _at("all_reduce"), 1: _at("barrier"), 2: _at("barrier")},
     {}, "rank 0 is in all_reduce #1 of the default group; ranks 1-2 are in barrier #1 of the "
     "default group; each waits for ranks 0-2, which will not come"),
    ("same-operation-different-number",
     {0: _at("barrier", 2), 1: _at("barrier"), 2: _at("barrier")},
     {}, "rank 0 is in barrier #2 of the default group; ranks 1-2 are in barrier #1 of the default "
     "group; each waits for ranks 0-2, which will not come"),
    ("same-operation-different-group",
     {0: _at("barrier", label="agree", ranks=PAIR), 1: _at("barrier", ranks=PAIR)}, {},
     "rank 0 is in barrier #1 of group agree; rank 1 is in barrier #1 of the default group; each "
     "waits for ranks 0-1, which will not come"),
    ("member-returned", {1: GATHER, 2: GATHER}, {0: "has returned"},
     "ranks 1-2 are in all_gather #1 of the default group (gather of embed); rank 0 has returned; "
     "each waits for rank 0, which will not come"),
    ("member-raised", {1: _at("barrier"), 2: _at("barrier")}, {0: "has raised"},
     "ranks 1-2 are in barrier #1 of the default group; rank 0 has raised; each waits for rank 0, "
     "which will not come"),
    ("members-died", {1: _at("barrier")}, {0: "has died", 2: "has died"},
     "rank 1 is in barrier #1 of the default group; rank 0 has died; rank 2 has died; each waits "
     "for ranks 0, 2, which will not come"),
    ("pair-without-its-other-half", {1: PAIR_GATHER}, {0: "has raised", 2: "has returned"},
     "rank 1 is in all_gather #1 of the group of ranks 0, 1 (gather of embed); rank 0 has raised; "
     "rank 2 has returned; each waits for rank 0, which will not come"),
    ("waits-behind-one-that-waits", {0: ON_CHANNEL, 1: _at("barrier"), 2: _at("barrier")}, {},
     "rank 0 waits for the other end of the channel; ranks 1-2 are in barrier #1 of the default "
     "group; each waits for rank 0, which will not come"),
    ("nobody-receives", {0: ON_CHANNEL}, {1: "has returned", 2: "has returned"},
     "rank 0 waits for the other end of the channel; rank 1 has returned; rank 2 has returned; and "
     "no engine is receiving"),
    ("two-senders-and-nobody-receives", {0: ON_CHANNEL, 1: ON_CHANNEL}, {},
     "ranks 0-1 wait for the other end of the channel; and no engine is receiving"),
    ("an-older-collective-is-pending-too", {0: BOTH_PENDING, 1: OLDER_PENDING}, {2: "has raised"},
     "rank 0 is in all_reduce #1 of group agree; rank 1 is in broadcast #4 of the default group; "
     "rank 2 has raised; each waits for ranks 1-2, which will not come"),
]
# fmt: on


@pytest.mark.parametrize(
    ("blocked", "elsewhere", "sentence"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_find_deadlock(
    blocked: Mapping[int, Blocked], elsewhere: Mapping[int, str], sentence: str | None
) -> None:
    """It is a deadlock when each waits for one that will not come, and only then."""
    assert find_deadlock(blocked, elsewhere, num_open_requests=0) == sentence
    # An engine that has not answered may free a rank yet, whatever the ranks are in.
    assert find_deadlock(blocked, elsewhere, num_open_requests=1) is None


@pytest.mark.parametrize(
    ("blocked", "sentence"),
    [
        (IN_NONE, "is in no collective"),
        (ON_CHANNEL, "waits for the other end of the channel"),
        (GATHER, "is in all_gather #1 of the default group (gather of embed)"),
        (BOTH_PENDING, "is in all_reduce #1 of group agree"),
    ],
)
def test_sentences(blocked: Blocked, sentence: str) -> None:
    """The last collective is the one that a rank is in."""
    assert blocked.sentence() == sentence


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
