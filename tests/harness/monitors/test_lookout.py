"""What a snapshot is made of: answers of ranks, states of engines, the journal and the kernel."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.journal import JournalReader, JournalWriter
from harness.monitors import kernel
from harness.monitors.lookout import Lookout
from harness.monitors.progress import Progress
from harness.monitors.snapshot import ProcessAt, Snapshot, Timer, WorkerAt
from harness.observation import RankEnding

UPDATE = {"name": "request", "engine": 0, "action": "update", "limit_s": 2.0}
IDLE_WORKER = {"busy": None, "active": False}
RECEIVING = {
    "busy": "update_weights",
    "active": True,
    "pending": [{"op": "broadcast", "seq": 4}, {"op": "synchronize", "seq": 4}],
}
RAISED = RankEnding(ending="raised", leaves=True)


class Rank:
    """A rank that answers each request for evidence with what a test says, if anything."""

    def __init__(self, lookout: Lookout, index: int, answer: Mapping[str, Any] | None) -> None:
        self.name, self.pid = f"rank:{index}", os.getpid()
        self.exit_status: int | None = None
        self._lookout, self._index, self._answer = lookout, index, answer

    async def send(self, message: Mapping[str, Any]) -> None:
        if self._answer is not None:
            reply = {"reply": "evidence", **self._answer}
            self._lookout.note(self._index, cast(Any, self), reply)


class World:
    """Ranks, one engine whose state is given, and a journal."""

    def __init__(self, path: Path, state: Mapping[str, Any] | None) -> None:
        self.record = {who: JournalWriter(path, who) for who in ("rank:0", "engine:0")}
        self._reader = JournalReader(path)
        self.progress = Progress(self._reader, last_s=0.0)
        self.num_asked = 0
        self._state = state
        self.engine = SimpleNamespace(exit_status=None, pid=os.getpid())
        self.stage = SimpleNamespace(
            ranks={},
            engines={0: self.engine},
            addresses=[SimpleNamespace(index=0, url="http://engine")],
            http=SimpleNamespace(get=self._get),
        )
        self.lookout = Lookout(cast(Any, self.stage), self.progress)

    @asynccontextmanager
    async def _get(self, url: str, timeout: Any) -> AsyncIterator[Any]:
        assert url == "http://engine/harness/state?weights=no"
        self.num_asked += 1
        if self._state is None:
            raise TimeoutError

        async def read() -> Any:
            return json.loads(json.dumps(self._state))

        yield SimpleNamespace(json=read)

    def add(self, answer: Mapping[str, Any] | None) -> Rank:
        index = len(self.stage.ranks)
        self.stage.ranks[index] = rank = Rank(self.lookout, index, answer)
        return rank

    def look(self, *endings: RankEnding | None) -> Snapshot:
        self.progress.catch_up()
        return asyncio.run(self.lookout.look(dict(enumerate(endings)), limit_s=0.05))

    def close(self) -> None:
        for writer in self.record.values():
            writer.close()
        self._reader.close()


@pytest.fixture
def world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[World]:
    monkeypatch.setattr(kernel, "look_at", lambda pid: ProcessAt(state="S"))
    made = World(tmp_path / "journal.jsonl", getattr(request, "param", {"workers": [IDLE_WORKER]}))
    yield made
    made.close()


def test_collectives(world: World) -> None:
    """A rank's collectives come with when their group's time-out ends them."""
    world.record["rank:0"]("gather", tensor="embed", phase="begin")
    pending = {
        "label": "tp", "ranks": [0, 1], "op": "all_gather", "seq": 3, "sizes": [[4, 2]],
        "timeout_s": 30.0, "age_s": 0.5,
    }  # fmt: skip
    world.add({"pending": [pending], "passed": [[[0, 1], "tp", 2], [[0, 1], "default_pg", 9]]})
    snapshot = world.look(None)
    at = snapshot.ranks[0]
    (collective,) = at.collectives
    assert (collective.key, collective.sizes) == (((0, 1), "tp", 3, "all_gather"), [[4, 2]])
    assert collective.ends_s == pytest.approx(snapshot.at_s + 29.5)
    assert at.passed == {((0, 1), "tp"): 2, ((0, 1), "default_pg"): 9}
    assert (at.tensor, at.answers, at.timers) == ("embed", True, ())
    assert at.process == ProcessAt()  # its wait is known: the kernel is not asked
    assert (world.num_asked, snapshot.engines[0].answers) == (0, None)  # nobody waits for it


def test_open_requests(world: World) -> None:
    """A request that a rank tells of is its timer, and the engine's, whatever the engine says."""
    world.add({"pending": []})
    world.record["engine:0"]("request", id=1, point="engine.update", phase="begin")
    assert world.look(None).unclaimed == ("engine.update",)  # of a target that tells of none
    world.record["rank:0"]("step", phase="begin", **UPDATE)
    snapshot = world.look(None)
    (timer,) = snapshot.ranks[0].timers
    assert timer.ends_s == pytest.approx(snapshot.at_s + 2.0, abs=1.0)
    assert timer == Timer(
        what="engine 0's answer to update", limit_s=2.0, ends_s=timer.ends_s, engine=0
    )
    assert snapshot.unclaimed == ()
    assert (world.num_asked, snapshot.engines[0].requests) == (2, ("engine.update",))

    world.record["rank:0"]("step", phase="end", **UPDATE)
    snapshot = world.look(None)  # the client has given up, and the engine works on
    assert (snapshot.ranks[0].timers, snapshot.unclaimed) == ((), ())


def test_a_timer_that_was_left_behind(world: World) -> None:
    """A wait that should have ended long ago, whose thread has died, frees nobody."""
    world.add({"pending": []})
    world.record["rank:0"]("step", phase="begin", **UPDATE | {"limit_s": -5.0})
    assert world.look(None).ranks[0].timers == ()


def test_silent_ranks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a rank that does not answer the kernel tells whether it is stopped, or runs."""
    spent = iter((1.0, 1.2))
    monkeypatch.setattr(kernel, "cpu_s", lambda pid: next(spent))
    monkeypatch.setattr(kernel, "is_runnable", lambda pid: True)
    world.add(None)
    at = world.look(None).ranks[0]
    assert (at.answers, at.process.state, at.process.runnable) == (False, "S", True)
    assert at.process.cpu is not None
    assert at.process.cpu > 0.2


def test_ranks_that_ended(world: World) -> None:
    """One that raised and must leave is on its way out until its process has been gone a while."""
    rank = world.add(None)
    at = world.look(RAISED).ranks[0]
    assert (at.ended, at.leaving) == ("has raised", True)
    rank.exit_status = 1
    assert world.look(RAISED).ranks[0].leaving  # its peers may not have noticed
    at = world.look(RankEnding(ending="returned")).ranks[0]
    assert (at.ended, at.leaving) == ("has returned", False)


def test_a_peer_that_wants_a_cpu(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the end of a process may have woken somebody who got no CPU, it counts as leaving."""
    monkeypatch.setattr("harness.monitors.lookout.SETTLED_S", -1.0)
    runnable = True
    monkeypatch.setattr(kernel, "is_runnable", lambda pid: runnable)
    world.add(None).exit_status = 1
    world.add({"pending": []})
    assert world.look(RAISED, None).ranks[0].leaving
    runnable = False
    assert not world.look(RAISED, None).ranks[0].leaving
    runnable = True
    monkeypatch.setattr("harness.monitors.lookout.STARVED_S", -1.0)
    assert not world.look(RAISED, None).ranks[0].leaving  # it runs for ever


# fmt: off
STATES = [
    # id, the engine's state (None: no answer), answers, workers, stopped
    ("receiving", {"workers": [RECEIVING, IDLE_WORKER]}, True,
     (WorkerAt(call="update_weights", active=True, receives=4), WorkerAt(active=False)), False),
    ("one-process-is-stopped", {"workers": [{"busy": "frozen: worker 0", "active": True}]}, True,
     (WorkerAt(call="frozen: worker 0", active=True),), True),
    ("silent", None, False, (), False),
]
# fmt: on


@pytest.mark.parametrize(
    ("world", "answers", "workers", "is_stopped"),
    [case[1:] for case in STATES],
    ids=[case[0] for case in STATES],
    indirect=["world"],
)
def test_engines(
    world: World, answers: bool, workers: tuple[WorkerAt, ...], is_stopped: bool
) -> None:
    """An engine that a rank waits for tells of its workers; one that is silent, of nothing."""
    world.add({"pending": []})
    world.record["rank:0"]("data_plane", op="synchronize", seq=4, phase="begin")
    snapshot = world.look(None)
    engine = snapshot.engines[0]
    assert snapshot.ranks[0].channel == 4
    assert (engine.answers, engine.workers) == (answers, workers)
    assert engine.process.is_stopped == is_stopped
    world.engine.exit_status = -9
    assert world.look(None).engines[0].exit_status == -9
