"""One command on every rank: how each ends it, and when the watch gives up waiting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import harness.watch
from harness.journal import JournalReader, JournalWriter
from harness.monitors.progress import Progress
from harness.observation import Halt, RankEnding
from harness.scenario import FAULT_SPECS, Scenario
from harness.watch import Watch, deadline_s

RETURNED = {"reply": "push", "ok": True, "version": "1", "result": {"attempts": 1}}
RAISED = {
    "reply": "push",
    "ok": False,
    "error": "engine 0: refused",
    "type": "PushFailed",
    "causes": ["refused"],
    "result": {"attempts": 2},
    "leaves": True,
    "version": "0",
}
BARRIER = [{"op": "barrier", "seq": 1, "label": "default_pg", "ranks": [0, 1]}]
KILLED = {"fault": 0, "kind": "kill", "at": "rank.gather"}

Answer = Callable[["FakeRank", Mapping[str, Any]], None]


class FakeRank:
    """A rank that does with each message what a test says; ``None`` in its box is its end."""

    def __init__(self, index: int, answer: Answer) -> None:
        self.name = f"rank:{index}"
        self.status: int | None = 0  # None: its process never ends
        self.box: asyncio.Queue[Any] = asyncio.Queue()
        self._answer = answer

    def say(self, *messages: Any) -> None:
        for message in messages:
            self.box.put_nowait(message)

    async def send(self, message: Mapping[str, Any]) -> None:
        self._answer(self, message)

    async def receive(self) -> Any:
        return await self.box.get()

    async def wait(self, timeout_s: float) -> int:
        if self.status is None:
            raise TimeoutError("it is in state S")
        return self.status

    async def stacks(self) -> str:
        return f"stack of {self.name}"

    def log_tail(self, lines: int) -> str:
        return "last words"


def returns(rank: FakeRank, message: Mapping[str, Any]) -> None:
    """Return from every push at once."""
    if message["cmd"] == "push":
        rank.say(RETURNED)


def raises(rank: FakeRank, message: Mapping[str, Any]) -> None:
    """Raise from every push at once."""
    if message["cmd"] == "push":
        rank.say(RAISED)


def loops(rank: FakeRank, message: Mapping[str, Any]) -> None:
    """Never end a push, in no collective."""
    if message["cmd"] == "evidence":
        rank.say({"reply": "evidence", "pending": []})


def waits(rank: FakeRank, message: Mapping[str, Any]) -> None:
    """Never end a push, in a barrier."""
    if message["cmd"] == "evidence":
        rank.say({"reply": "evidence", "pending": BARRIER})


def is_mute(rank: FakeRank, message: Mapping[str, Any]) -> None:
    """Never answer, as a process that is stopped."""


def ends(status: int | None) -> Answer:
    """Return an answer that ends the process, or only its channel, without a word."""

    def end(rank: FakeRank, message: Mapping[str, Any]) -> None:
        rank.status = status
        rank.say(None)

    return end


class World:
    """Two ranks, one engine and a journal, under a watch with short limits."""

    def __init__(self, path: Path, *answers: Answer, limit_s: float) -> None:
        self.record = {who: JournalWriter(path, who) for who in ("harness", "rank:1", "engine:0")}
        self.ranks = {index: FakeRank(index, answer) for index, answer in enumerate(answers)}
        self.engine = SimpleNamespace(exit_status=None)
        self.scenario = Scenario.model_validate(
            {"proves": "It.", "transport": "ipc", "pushes": 1, "expect": (), "deadline_s": limit_s}
        )
        stage = SimpleNamespace(
            scenario=self.scenario,
            ranks=self.ranks,
            engines={0: self.engine},
            record=self.record["harness"],
        )
        self.reader = JournalReader(path)
        self.path = path
        progress = Progress(self.reader, last_s=0.0)
        self._watch = Watch(cast(Any, stage), progress, doing=lambda what: None)

    async def push(self) -> tuple[dict[int, RankEnding], Halt | None]:
        return await self._watch.command({"cmd": "push", "n": 1})

    def close(self) -> None:
        for writer in self.record.values():
            writer.close()
        self.reader.close()


MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeWorld]:
    """Make worlds whose watch loses patience after milliseconds."""
    limits = {"QUIET_S": 0.02, "POLL_S": 0.002, "EVIDENCE_LIMIT_S": 0.02, "DEATH_LIMIT_S": 0.02}
    for name, value in limits.items():
        monkeypatch.setattr(harness.watch, name, value)
    worlds: list[World] = []

    def make(*answers: Answer, limit_s: float = 5.0) -> World:
        worlds.append(World(tmp_path / f"{len(worlds)}.jsonl", *answers, limit_s=limit_s))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


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


def test_deadlock(make_world: MakeWorld) -> None:
    """A wait for a rank that has returned is halted, with the stacks of who waits."""

    async def run() -> None:
        world = make_world(returns, waits)
        endings, halted = await world.push()
        assert (endings[0].ending, endings[1].ending) == ("returned", "blocked")
        assert halted is not None
        assert (halted.kind, halted.sentence) == (
            "deadlock",
            "rank 1 is in barrier #1 of the default group; rank 0 has returned; each waits for "
            "rank 0, which will not come",
        )
        assert 0.02 < halted.waited_s < 2.0
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
    ("is-mute",  is_mute,  "rank 1 is in no collective"),
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
            f"the deadline of 0.1 s passed: {where}",
        )
        assert halted.evidence["rank:1"].endswith("stack of rank:1")

    asyncio.run(run())


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
    assert deadline_s(Scenario.model_validate(given)) == expected_s


def test_deadline_allows_for_slow_faults() -> None:
    """What a fault takes is added."""
    fault = {"kind": "slow", "at": "engine.update", "engine": 0, "seconds": 7.0}
    given = {"proves": "It.", "transport": "ipc", "pushes": 1, "expect": (), "faults": ()}
    scenario = Scenario.model_validate(given)
    slowed = scenario.model_copy(
        update={"faults": (FAULT_SPECS["slow"].model_validate(fault),) * 2}
    )
    assert deadline_s(slowed) == deadline_s(scenario) + 14.0
