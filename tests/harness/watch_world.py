"""A watch over ranks that do what a test says: no process, and limits of milliseconds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from harness.journal import JournalReader, JournalWriter
from harness.monitors.progress import Progress
from harness.observation import Halt, RankEnding
from harness.scenario import Scenario
from harness.watch import Watch

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
        self.pid = os.getpid()
        self.exit_status: int | None = None
        self.stack = f"stack of {self.name}"
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
        return self.stack

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
        self.engine = FakeRank(0, is_mute)
        self.engine.name = "engine:0"
        self.scenario = Scenario.model_validate(
            {"proves": "It.", "transport": "ipc", "pushes": 1, "expect": (), "deadline_s": limit_s}
        )
        stage = SimpleNamespace(
            scenario=self.scenario,
            ranks=self.ranks,
            engines={0: self.engine},
            addresses=(),
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
