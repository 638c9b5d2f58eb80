"""When the watch gives up waiting, for whom it waits no longer, and what it tells of a stall."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from watch_world import (
    BARRIER,
    RETURNED,
    Answer,
    FakeRank,
    MakeWorld,
    ends,
    is_mute,
    loops,
    returns,
    waits,
)

from harness.monitors import kernel
from harness.monitors.snapshot import ProcessAt
from harness.observation import Halt, RankEnding


def test_deadlock(make_world: MakeWorld) -> None:
    """A wait for a rank that has returned is halted, with the stacks of who waits."""

    async def run() -> None:
        world = make_world(returns, waits)
        endings, halted = await world.push()
        assert (endings[0].ending, endings[1].ending) == ("returned", "blocked")
        assert halted is not None
        assert (halted.kind, halted.sentence) == (
            "deadlock",
            "rank 0 has returned while rank 1 waits for it in barrier #1 of the default group",
        )
        assert 0.02 < halted.waited_s < 2.0
        assert halted.classification == "deadlock"
        graph = halted.evidence.pop("wait-for graph")  # type: ignore[attr-defined]
        assert graph.startswith(halted.sentence)
        assert graph.splitlines()[4:] == [
            "rank 1  barrier #1 of the default group  -      -",
            "        waits for rank 0, which has returned",
        ]
        assert halted.evidence == {
            "rank:1": "rank:1 is in barrier #1 of the default group\nstack of rank:1"
        }
        events = [json.loads(line) for line in world.path.read_text().splitlines()]
        assert (events[-1]["event"], events[-1]["kind"]) == ("halt", "deadlock")

    asyncio.run(run())


# fmt: off
OVERRUNS = [
    # id, what rank 1 does while rank 0 has returned, where it is when the deadline comes
    ("loops",    loops,    "rank 1 is in no collective"),
    ("is-mute",  is_mute,  "rank 1 does not answer"),
]
# fmt: on


@pytest.mark.parametrize(
    ("answer", "where"), [case[1:] for case in OVERRUNS], ids=[case[0] for case in OVERRUNS]
)
def test_overran(make_world: MakeWorld, answer: Answer, where: str) -> None:
    """What no wait explains is ended by the deadline, and its stacks are kept."""

    async def run() -> None:
        endings, halted = await make_world(returns, answer, limit_s=0.1).push()
        assert endings[1].ending == "blocked"
        assert halted is not None
        assert (halted.kind, halted.sentence) == (
            "overran",
            f"the deadline of 0.1 s passed; stuck, unproven: {where}",
        )
        assert halted.evidence["rank:1"].endswith("stack of rank:1")
        assert (
            halted.evidence["engine:0"] == "stack of rank:0"
        )  # everybody's, where nothing is proven

    asyncio.run(run())


def test_a_second_look(make_world: MakeWorld) -> None:
    """What looked like a deadlock and has moved on by the second look is none."""

    async def run() -> None:
        num_asked = 0

        def moves_without_a_word(rank: FakeRank, message: Mapping[str, Any]) -> None:
            nonlocal num_asked
            if message["cmd"] == "evidence":
                num_asked += 1
                pending = [{**BARRIER[0], "seq": num_asked}]
                rank.say({"reply": "evidence", "pending": pending})
                if num_asked == 6:
                    rank.say(RETURNED)

        endings, halted = await make_world(returns, moves_without_a_word).push()
        assert (endings[1].ending, halted) == ("returned", None)

    asyncio.run(run())


def test_who_returned_has_left_the_barrier(make_world: MakeWorld) -> None:
    """A rank that is about to leave a barrier, which the other one has left, is in no deadlock."""

    async def run() -> None:
        def has_left(rank: FakeRank, message: Mapping[str, Any]) -> None:
            returns(rank, message)
            if message["cmd"] == "evidence":
                passed = [[[0, 1], "default_pg", 1]]
                rank.say({"reply": "evidence", "pending": [], "passed": passed})

        world = make_world(has_left, waits, limit_s=0.3)
        _, halted = await world.push()
        assert halted is not None
        assert (halted.kind, halted.classification) == ("overran", "stuck")

    asyncio.run(run())


def test_deaths_are_told(make_world: MakeWorld) -> None:
    """How a rank died is told at once, and what it was last doing."""

    async def run() -> None:
        world = make_world(returns, ends(-9))
        world.record["rank:1"]("gather", tensor="embed", phase="begin")
        await world.push()
        told = [json.loads(line) for line in world.path.read_text().splitlines()]
        assert (told[-1]["event"], told[-1]["kind"], told[-1]["sentence"]) == (
            "diagnosis",
            "crashed",
            "rank 1 was killed by SIGKILL, last in gather embed",
        )

    asyncio.run(run())


def test_a_rank_that_a_fault_keeps(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for no longer once the others have ended, if the fault is where it is."""
    frozen = {"fault": 0, "kind": "freeze", "at": "rank.gather", "where": {}}
    stopped = ProcessAt(state="T")

    async def run(kind: str, at: ProcessAt, stack: str) -> tuple[RankEnding, Halt | None]:
        monkeypatch.setattr(kernel, "look_at", lambda pid: at)
        world = make_world(returns, is_mute if at.is_stopped else loops, limit_s=0.3)
        world.ranks[1].stack = stack

        def is_struck(rank: FakeRank, message: Mapping[str, Any]) -> None:
            if message["cmd"] == "push":
                world.record["rank:1"]("fault", **{**frozen, "kind": kind})
            answer(rank, message)

        answer, world.ranks[1]._answer = world.ranks[1]._answer, is_struck
        endings, halted = await world.push()
        return endings[1], halted

    kept = RankEnding(ending="blocked", struck=True)
    inside = 'Thread 0x1 (most recent call first):\n  File "/x/harness/faults/loop.py", line 1'
    outside = f'{inside}\n\nThread 0x2 (most recent call first):\n  File "/x/y.py", line 1'
    assert asyncio.run(run("freeze", stopped, "")) == (kept, None)
    assert asyncio.run(run("loop", ProcessAt(), inside)) == (kept, None)
    for kind, at, stack in (
        ("loop", ProcessAt(), outside),  # another thread of it was struck
        ("raise", ProcessAt(), inside),  # a kind that comes back
    ):
        ending, halted = asyncio.run(run(kind, at, stack))
        assert not ending.struck
        assert halted is not None
        assert halted.kind == "overran"


@pytest.mark.parametrize("exit_status", [None, -9], ids=["engine-lives", "engine-died"])
def test_open_requests(make_world: MakeWorld, exit_status: int | None) -> None:
    """A living engine's answer may still free a rank, so only the deadline ends it."""

    async def run() -> None:
        world = make_world(returns, waits, limit_s=0.1)
        world.engine.exit_status = exit_status
        world.record["engine:0"]("request", id=1, point="engine.update", phase="begin")
        _, halted = await world.push()
        assert halted is not None
        assert halted.kind == ("overran" if exit_status is None else "deadlock")

    asyncio.run(run())


def test_progress_puts_it_off(make_world: MakeWorld) -> None:
    """Ranks that looked blocked but moved while they were asked are left alone."""

    async def run() -> None:
        num_asked = 0

        def moves(rank: FakeRank, message: Mapping[str, Any]) -> None:
            nonlocal num_asked
            if message["cmd"] == "evidence":
                num_asked += 1
                world.record["rank:1"]("step", name="agree.start")
                rank.say({"reply": "evidence", "pending": BARRIER})
                if num_asked == 3:
                    rank.say(RETURNED)

        world = make_world(returns, moves)
        endings, halted = await world.push()
        assert (endings[1].ending, halted, num_asked) == ("returned", None, 3)

    asyncio.run(run())


def test_late_evidence(make_world: MakeWorld) -> None:
    """An answer that comes after the next request tells of the past, and is not taken for it."""

    async def run() -> None:
        num_asked = 0

        def answers_late(rank: FakeRank, message: Mapping[str, Any]) -> None:
            nonlocal num_asked
            if message["cmd"] == "evidence":
                num_asked += 1
                if num_asked == 2:  # in a barrier then, in no collective now, and back soon
                    rank.say({"reply": "evidence", "pending": BARRIER})
                    rank.say({"reply": "evidence", "pending": []})
                    rank.say(RETURNED)

        world = make_world(returns, answers_late)
        endings, halted = await world.push()
        assert (endings[1].ending, halted, num_asked) == ("returned", None, 2)

        def answers_after_its_push(rank: FakeRank, message: Mapping[str, Any]) -> None:
            if message["cmd"] == "evidence":
                rank.say(RETURNED, {"reply": "evidence", "pending": BARRIER})

        world = make_world(returns, answers_after_its_push)
        assert (await world.push())[0][1].ending == "returned"
        world.ranks[1].say(RETURNED)  # of the next push, after the evidence that is still there
        assert (await world.push())[0][1].ending == "returned"

    asyncio.run(run())
