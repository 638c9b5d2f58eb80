"""One command on every rank: how each ends it, and how long it may take."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from watch_world import (
    KILLED,
    Answer,
    FakeRank,
    MakeWorld,
    ends,
    is_mute,
    raises,
    returns,
)

from harness.observation import RankEnding
from harness.scenario import FAULT_SPECS, Scenario

RAISED_ENDING = RankEnding(
    ending="raised",
    error="engine 0: refused",
    error_type="PushFailed",
    causes=("refused",),
    version="0",
    result={"attempts": 2},
    leaves=True,
)

# fmt: off
ENDINGS = [
    # id, what the rank does, how its push ended
    ("returns", returns, RankEnding(ending="returned", version="1", result={"attempts": 1})),
    ("raises", raises, RAISED_ENDING),
    ("dies", ends(3), RankEnding(ending="died", exit_status=3,
                                 error="ended with status 3: last words")),
    ("leaves-as-if-all-were-well", ends(0), RankEnding(
        ending="died", exit_status=0, error="ended with status 0: last words")),
    ("closes-its-channel", ends(None), RankEnding(
        ending="died", error="closed its channel and lives on: it is in state S")),
]
# fmt: on


@pytest.mark.parametrize(
    ("answer", "ending"), [case[1:] for case in ENDINGS], ids=[case[0] for case in ENDINGS]
)
def test_endings(make_world: MakeWorld, answer: Answer, ending: RankEnding) -> None:
    """Each rank's own ending is told, whatever the others do."""

    async def run() -> None:
        world = make_world(returns, answer)
        endings, halted = await world.push()
        assert halted is None
        assert endings[1] == ending
        assert endings[0].ending == "returned"

    asyncio.run(run())


def test_struck_or_not(make_world: MakeWorld) -> None:
    """A rank that a fault killed is excused; one that dies after its restart is not."""

    async def run() -> None:
        world = make_world(returns, ends(-9))
        world.record["rank:1"]("fault", **KILLED)
        endings, _ = await world.push()  # the fault struck before this process had a command
        assert (endings[1].struck, endings[1].exit_status) == (False, -9)

        def is_struck(rank: FakeRank, message: Mapping[str, Any]) -> None:
            world.record["rank:1"]("fault", **KILLED)
            ends(-9)(rank, message)

        world.ranks[1] = FakeRank(1, is_struck)
        endings, _ = await world.push()
        assert (endings[1].struck, endings[1].error) == (True, "")
        world.ranks[1].say(None)  # it is still dead
        world.ranks[1]._answer = is_mute
        endings, _ = await world.push()
        assert endings[1].struck
        world.ranks[1] = FakeRank(1, ends(-9))  # restarted
        endings, _ = await world.push()
        assert not endings[1].struck

    asyncio.run(run())


# fmt: off
DEADLINES = [
    # id               fields of the scenario                                  deadline in seconds
    ("default",       {},                                                     110.0),
    ("short-waits",   {"timeouts": {"init_s": 2.0, "request_s": 1.0}},        22.0),
    ("its-own",       {"deadline_s": 3.5, "timeouts": {"init_s": 900.0}},     3.5),
]
# fmt: on


@pytest.mark.parametrize(
    ("fields", "expected_s"), [case[1:] for case in DEADLINES], ids=[case[0] for case in DEADLINES]
)
def test_deadline(fields: Mapping[str, Any], expected_s: float) -> None:
    """A command has time for its waits, unless the scenario says how much it has."""
    given = {"proves": "It.", "transport": "ipc", "pushes": 1, "expect": (), **fields}
    assert Scenario.model_validate(given).limit_s == expected_s


def test_deadline_allows_for_slow_faults() -> None:
    """What a fault takes is added."""
    fault = {"kind": "slow", "at": "engine.update", "engine": 0, "seconds": 7.0}
    given = {"proves": "It.", "transport": "ipc", "pushes": 1, "expect": (), "faults": ()}
    scenario = Scenario.model_validate(given)
    slowed = scenario.model_copy(
        update={"faults": (FAULT_SPECS["slow"].model_validate(fault),) * 2}
    )
    assert slowed.limit_s == scenario.limit_s + 14.0
