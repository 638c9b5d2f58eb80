"""Takes snapshots of a push: asks its processes what they are in, and the kernel about the rest."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import aiohttp

from harness.child import Child
from harness.monitors import kernel
from harness.monitors.progress import Progress
from harness.monitors.snapshot import (
    Collective,
    EngineAt,
    ProcessAt,
    RankAt,
    Snapshot,
    Timer,
    WorkerAt,
)
from harness.observation import RankEnding
from harness.stage import Stage

FIRST_LOOK_S = 0.1  # who has not answered by then may be stopped: the kernel knows
ENGINE_LIMIT_S = 0.25
EXPIRED_S = 1.0  # a wait whose end is that long ago was left behind, and frees nobody
# After a rank's process has gone, its peers need this long to notice; the latter where one of them
# wants a CPU: the end of a connection has woken it, and a busy machine lets it wait.
SETTLED_S, STARVED_S = 0.2, 2.0

FROZEN = "frozen: "  # how an engine's state begins the name of a process that is stopped
WORDS = {"returned": "has returned", "raised": "has raised", "died": "has died"}
Endings = Mapping[int, RankEnding | None]  # None: the command has not ended


class Lookout:
    """The view of one stage's processes."""

    def __init__(self, stage: Stage, progress: Progress) -> None:
        self._stage = stage
        self._progress = progress
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._unanswered: Counter[Child] = Counter()
        self._gone_s: dict[Child, float] = {}  # when a rank that was to leave was seen to be gone

    def note(self, rank: int, child: Child, reply: Mapping[str, Any]) -> None:
        """Take an answer, unless a later request is under way: it tells of an earlier moment."""
        self._unanswered[child] -= 1
        answer = self._answers.get(rank)
        if not self._unanswered[child] and answer is not None and not answer.done():
            answer.set_result(reply)

    async def look(self, endings: Endings, *, limit_s: float, thoroughly: bool = False) -> Snapshot:
        """Return where everybody is.

        Args:
            endings: every rank's.
            limit_s: how long a process may take to answer, in seconds.
            thoroughly: also ask how far the ranks have come whose command has ended, and what the
                main threads are in of those that are in a collective, which may be another
                thread's.
        """
        progress = self._progress
        unfinished = [rank for rank, ending in endings.items() if ending is None]
        timers = {rank: self._timers(rank) for rank in unfinished}
        living = {f"engine:{i}" for i, c in self._stage.engines.items() if c.exit_status is None}
        unclaimed = (
            ()
            if progress.telling
            else tuple(e["point"] for (who, _), e in progress.requests.items() if who in living)
        )
        on_channel = any(f"rank:{rank}" in progress.data_plane for rank in unfinished)
        asks_engines = on_channel or bool(unclaimed) or any(timers.values())
        answers, engines = await asyncio.gather(
            self._ask(unfinished, limit_s), self._engines(asked=asks_engines)
        )
        now_s = time.monotonic()
        settled_s = self._settled_s(unfinished) if any(_left(endings)) else SETTLED_S
        ranks = {
            rank: self._ended(rank, end, settled_s)
            for rank, end in endings.items()
            if end is not None
        }
        for rank in unfinished:
            ranks[rank] = self._rank_at(rank, answers[rank], now_s, timers[rank])
        if thoroughly:
            for rank in unfinished:
                if ranks[rank].answers:
                    ranks[rank] = replace(ranks[rank], process=self._process(rank))
            ranks |= await self._how_far(ranks, endings, limit_s)
        return Snapshot(at_s=now_s, ranks=ranks, engines=engines, unclaimed=unclaimed)

    async def _how_far(
        self, ranks: Mapping[int, RankAt], endings: Endings, limit_s: float
    ) -> dict[int, RankAt]:
        """Return the ranks whose command has ended, with how far they came in each group.

        One of them may have left a collective that a slower rank is about to leave, too.
        """

        async def passed(rank: int, child: Child) -> tuple[int, RankAt]:
            at = ranks[rank]
            with contextlib.suppress(TimeoutError, ConnectionError):
                await child.send({"cmd": "evidence"})
                self._unanswered[child] += 1
                async with asyncio.timeout(limit_s):
                    while (reply := await child.receive()) is not None:
                        self._unanswered[child] -= reply["reply"] == "evidence"
                        if not self._unanswered[child]:
                            return rank, replace(at, passed=_passed(reply))
            return rank, at

        found = await asyncio.gather(
            *(
                passed(rank, self._stage.ranks[rank])
                for rank, ending in endings.items()
                if ending is not None and ending.ending in ("returned", "raised")
            )
        )
        return dict(found)

    # ---- ranks ----

    async def _ask(self, ranks: Iterable[int], limit_s: float) -> dict[int, Any]:
        """Return each rank's answer, or its `ProcessAt` where it gives none in time."""
        loop = asyncio.get_running_loop()
        self._answers = {rank: loop.create_future() for rank in ranks}
        if not self._answers:
            return {}
        for rank in self._answers:
            child = self._stage.ranks[rank]
            self._unanswered[child] += 1
            with contextlib.suppress(ConnectionError):  # its end says the rest
                await child.send({"cmd": "evidence"})
        first_s = min(FIRST_LOOK_S, limit_s)
        _, late = await asyncio.wait(self._answers.values(), timeout=first_s)
        silent = {rank: answer for rank, answer in self._answers.items() if answer in late}
        before = {rank: kernel.cpu_s(self._stage.ranks[rank].pid) for rank in silent}
        begun_s = time.monotonic()
        if not all(self._process(rank).is_stopped for rank in silent):
            await asyncio.wait(silent.values(), timeout=limit_s - first_s)
        spent_s = max(time.monotonic() - begun_s, 1e-3)
        return {
            rank: answer.result()
            if answer.done()
            else _silent(self._stage.ranks[rank].pid, before[rank], spent_s)
            for rank, answer in self._answers.items()
        }

    def _process(self, rank: int) -> ProcessAt:
        return kernel.look_at(self._stage.ranks[rank].pid)

    def _rank_at(self, rank: int, answer: Any, now_s: float, timers: tuple[Timer, ...]) -> RankAt:
        who = f"rank:{rank}"
        wait = self._progress.data_plane.get(who)
        at = RankAt(
            tensor=self._progress.gathers.get(who),
            channel=None if wait is None else wait.get("seq", 0),
            timers=tuple(t for t in timers if t.ends_s is None or t.ends_s + EXPIRED_S > now_s),
        )
        if isinstance(answer, ProcessAt):
            return replace(at, answers=False, process=answer)
        pending = tuple(_collective(each, now_s) for each in answer["pending"])
        at = replace(at, collectives=pending, passed=_passed(answer))
        if pending or at.channel is not None or at.timers:
            return at
        return replace(at, process=self._process(rank))

    def _ended(self, rank: int, ending: RankEnding, settled_s: float) -> RankAt:
        leaving = ending.leaves and not self._is_gone(self._stage.ranks[rank], settled_s)
        return RankAt(ended=WORDS[ending.ending], leaving=leaving)

    def _is_gone(self, child: Child, settled_s: float) -> bool:
        """Whether a rank's process has ended, and its peers have had the time to notice."""
        if child.exit_status is None:
            return False
        now_s = time.monotonic()
        return now_s - self._gone_s.setdefault(child, now_s) > settled_s

    def _settled_s(self, unfinished: Iterable[int]) -> float:
        """Return how long the end of a process may take to be noticed by those that wait."""
        starved = any(kernel.is_runnable(self._stage.ranks[rank].pid) for rank in unfinished)
        return STARVED_S if starved else SETTLED_S

    def _timers(self, rank: int) -> tuple[Timer, ...]:
        return tuple(
            Timer(
                what=_wait_in_words(name, engine, action),
                limit_s=event["limit_s"],
                ends_s=event["t"] + event["limit_s"],
                engine=engine,
            )
            for (who, name, engine, action), events in self._progress.timers.items()
            if who == f"rank:{rank}"
            for event in events
        )

    # ---- engines ----

    async def _engines(self, *, asked: bool) -> dict[int, EngineAt]:
        """Return every engine; one that is not asked shows its requests, and whether it lives."""
        urls = {address.index: address.url for address in self._stage.addresses} if asked else {}
        seen = await asyncio.gather(
            *(self._engine_at(i, c, urls.get(i)) for i, c in self._stage.engines.items())
        )
        return dict(zip(self._stage.engines, seen, strict=True))

    async def _engine_at(self, index: int, child: Child, url: str | None) -> EngineAt:
        requests = tuple(
            event["point"]
            for (who, _), event in self._progress.requests.items()
            if who == f"engine:{index}"
        )
        if child.exit_status is not None:
            return EngineAt(exit_status=child.exit_status)
        if url is None:
            return EngineAt(requests=requests)
        before, begun_s = kernel.cpu_s(child.pid), time.monotonic()
        try:
            limit = aiohttp.ClientTimeout(total=ENGINE_LIMIT_S)
            # An engine that knows the word leaves out what takes long.
            state_url = f"{url}/harness/state?weights=no"
            async with self._stage.http.get(state_url, timeout=limit) as answer:
                state = await answer.json()
        except (aiohttp.ClientError, OSError):  # a time-out is an OSError
            spent_s = max(time.monotonic() - begun_s, 1e-3)
            process = _silent(child.pid, before, spent_s)
            return EngineAt(answers=False, requests=requests, process=process)
        workers = tuple(map(_worker, state["workers"]))
        # Of an engine of several processes the one that answers knows which of them are stopped.
        stopped = any((worker.call or "").startswith(FROZEN) for worker in workers)
        process = ProcessAt(state="T" if stopped else None)
        return EngineAt(answers=True, requests=requests, workers=workers, process=process)


def _left(endings: Endings) -> Iterator[bool]:
    """Yield whether each rank whose command has ended must leave the job."""
    yield from (ending.leaves for ending in endings.values() if ending is not None)


def _worker(state: Mapping[str, Any]) -> WorkerAt:
    receives = [wait["seq"] for wait in state.get("pending", ()) if wait["op"] == "synchronize"]
    return WorkerAt(
        call=state["busy"], active=state["active"], receives=receives[0] if receives else None
    )


def _collective(entry: Mapping[str, Any], now_s: float) -> Collective:
    timeout_s = entry.get("timeout_s")
    return Collective(
        ranks=tuple(entry["ranks"]),
        label=entry["label"],
        seq=entry["seq"],
        op=entry["op"],
        sizes=entry.get("sizes", ()),
        timeout_s=timeout_s,
        ends_s=None if timeout_s is None else now_s - entry["age_s"] + timeout_s,
    )


def _passed(answer: Mapping[str, Any]) -> dict[tuple[tuple[int, ...], str], int]:
    return {(tuple(ranks), label): seq for ranks, label, seq in answer.get("passed", ())}


def _silent(pid: int, before_s: float | None, spent_s: float) -> ProcessAt:
    """Return what the kernel says of a process that did not answer for ``spent_s``."""
    after_s = kernel.cpu_s(pid)
    cpu = None if before_s is None or after_s is None else (after_s - before_s) / spent_s
    return replace(kernel.look_at(pid), cpu=cpu, runnable=kernel.is_runnable(pid))


def _wait_in_words(name: str, engine: int | None, action: str | None) -> str:
    if engine is None:
        return f"the end of {name}"
    if action is None:
        return f"engine {engine} to come to rest" if name == "idle" else f"engine {engine}, {name}"
    return f"engine {engine}'s answer to {action}"
