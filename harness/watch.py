"""Gives every rank a command, and watches until each has ended it or none can any more."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harness.child import Child
from harness.monitors.deadlock import Blocked, find_deadlock
from harness.monitors.progress import Progress
from harness.observation import Halt, RankEnding
from harness.scenario import Scenario
from harness.stage import Stage

QUIET_S = 0.2  # without progress for this long, ask the ranks what they wait for
POLL_S = 0.04
EVIDENCE_LIMIT_S = 1.0
DEATH_LIMIT_S = 10.0
STRUCK = frozenset({"kill"})  # fault kinds that end the process they strike

Doing = Callable[[str], None]


class Watch:
    """The ranks of one stage under one command at a time.

    Args:
        doing: told, now and then, what the sender is doing.
    """

    def __init__(self, stage: Stage, progress: Progress, *, doing: Doing) -> None:
        self._stage = stage
        self._progress = progress
        self._doing = doing
        self._deadline_s = deadline_s(stage.scenario)
        self._evidence: dict[int, asyncio.Future[Any]] = {}
        self._unanswered: Counter[Child] = Counter()  # requests for evidence
        self._born: dict[Child, int] = {}  # number of events when its first command came

    async def command(
        self, message: Mapping[str, Any]
    ) -> tuple[dict[int, RankEnding], Halt | None]:
        """Give every rank a command; return how it ended on each, and why it was cut short."""
        command, ranks = message["cmd"], self._stage.ranks
        self._progress.catch_up()
        for child in ranks.values():
            self._born.setdefault(child, len(self._progress.events))
            await send(child, message)
        tasks = {
            rank: asyncio.create_task(self._ending(rank, child, command))
            for rank, child in ranks.items()
        }
        self._progress.last_s = time.monotonic()
        try:
            halted = await self._watch(tasks, time.monotonic() + self._deadline_s)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        return {rank: _result(task) for rank, task in tasks.items()}, halted

    async def _watch(
        self, tasks: Mapping[int, asyncio.Task[RankEnding]], end_s: float
    ) -> Halt | None:
        while waiting := [rank for rank, task in tasks.items() if not task.done()]:
            await asyncio.wait(
                [tasks[rank] for rank in waiting],
                timeout=POLL_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
            self._progress.catch_up()
            self._doing(self._progress.doing.get("rank:0", ""))
            waiting = [rank for rank in waiting if not tasks[rank].done()]
            now_s = time.monotonic()
            halted = None
            if waiting and now_s > end_s:
                halted = await self._overran(waiting)
            elif waiting and now_s - self._progress.last_s > QUIET_S:
                elsewhere = {r: _where(t.result()) for r, t in tasks.items() if t.done()}
                halted = await self._deadlocked(waiting, elsewhere)
            if halted is not None:
                return halted
        return None

    async def _ending(self, rank: int, child: Child, command: str) -> RankEnding:
        """Wait until a rank has ended a command, or died."""
        while (reply := await child.receive()) is not None:
            if reply["reply"] == "evidence":
                self._note_evidence(rank, child, reply["pending"])
            elif reply["reply"] == command:
                return _ending_of(reply)
        try:
            status = await child.wait(DEATH_LIMIT_S)
        except TimeoutError as late:
            return RankEnding(ending="died", error=f"closed its channel and lives on: {late}")
        self._progress.catch_up()
        self._progress.forget(child.name)
        struck = any(
            event["event"] == "fault" and event["who"] == child.name and event["kind"] in STRUCK
            for event in self._progress.events[self._born[child] :]
        )
        error = "" if struck else f"ended with status {status}: {child.log_tail(8)}"
        return RankEnding(ending="died", exit_status=status, struck=struck, error=error)

    def _note_evidence(self, rank: int, child: Child, pending: Any) -> None:
        """Take an answer, unless a later request is under way: it tells of an earlier moment."""
        self._unanswered[child] -= 1
        if not self._unanswered[child] and rank in self._evidence:
            self._evidence[rank].set_result(pending)

    # ---- when nothing moves ----

    async def _deadlocked(self, waiting: list[int], elsewhere: Mapping[int, str]) -> Halt | None:
        """Ask the waiting ranks what they are in; halt if nobody can move any more."""
        last_s = self._progress.last_s
        living = {f"engine:{i}" for i, c in self._stage.engines.items() if c.exit_status is None}
        num_open = sum(who in living for who, _ in self._progress.requests)
        if num_open:
            return None  # the client's time-out will end it; the deadline is the backstop
        blocked = await self._ask(waiting)
        if blocked is None:
            return None
        sentence = find_deadlock(blocked, elsewhere, num_open_requests=num_open)
        self._progress.catch_up()
        if sentence is None or self._progress.last_s != last_s:
            return None
        return await self._halt("deadlock", sentence, blocked)

    async def _overran(self, waiting: list[int]) -> Halt:
        blocked = await self._ask(waiting) or {rank: Blocked(()) for rank in waiting}
        where = "; ".join(f"rank {rank} {at.sentence()}" for rank, at in sorted(blocked.items()))
        sentence = f"the deadline of {self._deadline_s:g} s passed: {where}"
        return await self._halt("overran", sentence, blocked)

    async def _halt(self, kind: Any, sentence: str, blocked: Mapping[int, Blocked]) -> Halt:
        waited_s = time.monotonic() - self._progress.last_s
        self._stage.record("halt", kind=kind, sentence=sentence, waited_s=round(waited_s, 4))
        children = {rank: self._stage.ranks[rank] for rank in blocked}
        stacks = await asyncio.gather(*(child.stacks() for child in children.values()))
        evidence = {
            child.name: f"{child.name} {blocked[rank].sentence()}\n{stack}"
            for (rank, child), stack in zip(children.items(), stacks, strict=True)
        }
        return Halt(kind=kind, sentence=sentence, waited_s=waited_s, evidence=evidence)

    async def _ask(self, ranks: Iterable[int]) -> dict[int, Blocked] | None:
        """Return what each rank is blocked in; ``None`` if one does not answer."""
        loop = asyncio.get_running_loop()
        self._evidence = {rank: loop.create_future() for rank in ranks}
        for rank in self._evidence:
            self._unanswered[self._stage.ranks[rank]] += 1
            await send(self._stage.ranks[rank], {"cmd": "evidence"})
        _, late = await asyncio.wait(self._evidence.values(), timeout=EVIDENCE_LIMIT_S)
        if late:
            return None
        return {
            rank: Blocked(
                answer.result(),
                tensor=self._progress.gathers.get(f"rank:{rank}"),
                channel=f"rank:{rank}" in self._progress.data_plane,
            )
            for rank, answer in self._evidence.items()
        }


def deadline_s(scenario: Scenario) -> float:
    """Return how long one command may take: its waits, each to its end, and time to compute."""
    if scenario.deadline_s is not None:
        return scenario.deadline_s
    timeouts = scenario.timeouts
    slow_s = sum(float(fault.options().get("seconds", 0.0)) for fault in scenario.faults)
    return 10.0 + 2 * timeouts.init_s + 8 * timeouts.request_s + slow_s


async def send(child: Child, message: Mapping[str, Any]) -> None:
    """Send a message to a process that may have died; waiting for its answer says so."""
    with contextlib.suppress(ConnectionError):
        await child.send(dict(message))


def _result(task: asyncio.Task[RankEnding]) -> RankEnding:
    return RankEnding(ending="blocked") if task.cancelled() else task.result()


def _ending_of(reply: Mapping[str, Any]) -> RankEnding:
    if reply["ok"]:
        return RankEnding(ending="returned", version=reply["version"], result=reply["result"])
    return RankEnding(
        ending="raised",
        error=reply["error"],
        error_type=reply["type"],
        causes=tuple(reply["causes"]),
        version=reply["version"],
        result=reply["result"],
        leaves=reply["leaves"],
    )


def _where(ending: RankEnding) -> str:
    words = {"returned": "has returned", "raised": "has raised", "died": "has died"}
    return words[ending.ending]
