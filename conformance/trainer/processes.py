"""Runs one case on forked ranks, and knows without waiting when nothing can move any more."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from conformance.trainer.contract import Case, MakeTrainer, Opening, RankTrace, TrainerMaker
from conformance.trainer.doubles import Client, Source
from conformance.trainer.instruments import instrument
from conformance.trainer.notes import ENGINE_THREAD, Notes, Points
from harness.contracts import Json

LIMIT_S = 30.0
RENDEZVOUS_S = 10.0
SHORT_RENDEZVOUS_S = 0.3  # where the engine's worker will not come
READ_BYTES = 1 << 16
PR_SET_PDEATHSIG = 1  # linux/prctl.h: a rank goes with the process that forked it

_libc = ctypes.CDLL(None, use_errno=True)


def run(case: Case, make: MakeTrainer, *, num_ranks: int, directory: Path) -> list[RankTrace]:
    """Open a channel and push once; return what each rank did, until it ended or is stuck.

    Args:
        case: what to run; what it expects is not looked at.
        make: called in each rank's process.
        num_ranks: of the trainer; the processes are forked from this one.
        directory: for the rendezvous socket and shared memory; a short path.

    Raises:
        AssertionError: neither ended nor stuck after `LIMIT_S`; shows how far each rank came.
    """

    def be_rank(rank: int, pipe: int) -> None:
        _be_rank(case, make(), rank=rank, num_ranks=num_ranks, directory=directory, pipe=pipe)

    forks = [_fork(partial(be_rank, rank)) for rank in range(num_ranks)]
    ranks = [_Rank() for _ in forks]
    try:
        _follow(ranks, [pipe for _, pipe in forks])
    finally:
        for pid, pipe in forks:
            os.close(pipe)
            os.kill(pid, signal.SIGKILL)  # ours, and not reaped yet: it cannot be another's
            os.waitpid(pid, 0)
    return [rank.trace() for rank in ranks]


# ---- in a rank's process ----


def _be_rank(
    case: Case, trainer: TrainerMaker, *, rank: int, num_ranks: int, directory: Path, pipe: int
) -> None:
    notes = Notes(pipe)
    kept = trainer.join(rank, num_ranks, directory)
    source = Source(notes, case.fault)
    client = Client(notes, case.fault, trainer.receiver(case.transport), source)
    points = Points(notes, port_taken=case.fault.port_taken)
    nobody_joins = case.fault.refuses == "init" and case.fault.when != "afterwards"
    opening = Opening(
        transport=case.transport,
        packed=case.packed,
        buffer_bytes=case.buffer_bytes,
        rank=rank,
        rendezvous_s=SHORT_RENDEZVOUS_S if nobody_joins else RENDEZVOUS_S,
        directory=directory,
        injector=points,
        record=points.record,
    )
    instrument(notes, case.fault, rank)
    try:
        client.trainer = trainer.open(opening, client, source, notes)
        client.trainer.send_weights()
        ended = "returned"
    except Exception as error:
        ended = f"raised {type(error).__name__}: {error}"
    notes.say("ended", how=ended)
    signal.pause()  # a rank that raised is not gone: gloo would tell its peers
    del kept


def _fork(function: Callable[[int], None]) -> tuple[int, int]:
    """Run a function in a process of its own; return its pid and the pipe that it writes to."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.close(reader)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        function(writer)
    except BaseException as error:
        Notes(writer).say("ended", how=f"broke: {type(error).__name__}: {error}")
    finally:
        os._exit(1)


# ---- in the checking process ----


@dataclass
class _Rank:
    """How far one rank is known to have come."""

    lines: dict[str, list[str]] = field(default_factory=lambda: {"main": [], "side": []})
    waits: dict[str, list[tuple[str, bool]]] = field(default_factory=dict)  # thread -> inside of
    payloads: list[Json] = field(default_factory=list)
    collectives: int = 0  # entered
    side_calls: int = 0  # begun and not ended
    sent: int = 0  # bytes enqueued
    expects: int = 0  # bytes that the engine's worker was told to wait for, over all updates
    received: int = 0  # bytes that it has
    deaf: bool = False  # the engine's worker will not receive
    ended: str | None = None
    unread: bytes = b""

    def take(self, data: bytes) -> None:
        """Take what came through the pipe."""
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, message: dict[str, Json]) -> None:
        thread = message["thread"]
        match message["kind"]:
            case "line":
                self.lines.setdefault(thread, []).append(message["text"])
            case "enter":
                self.waits.setdefault(thread, []).append((message["what"], message["collective"]))
                self.collectives += message["collective"]
            case "exit":
                self.waits[thread].pop()
            case "payload":
                self.payloads.append(message["payload"])
            case "side call begins":
                self.side_calls += 1
            case "side call ended":
                self.side_calls -= 1
            case "enqueued":
                self.sent += message["bytes"]
            case "expects":
                self.expects += message["bytes"]
            case "received":
                self.received += message["bytes"]
            case "deaf":
                self.deaf = True
            case "ended":
                self.ended = message["how"]

    def inside(self, thread: str) -> tuple[str, bool]:
        """Return what a thread is inside of, and whether that is a collective."""
        waits = self.waits.get(thread)
        return waits[-1] if waits else ("", False)

    def is_stuck_alone(self) -> bool:
        """Whether the main thread waits for an engine that will do nothing."""
        what, _ = self.inside("main")
        if what == "synchronize":
            return self.deaf
        if what == "receive":  # called in the main thread, which would have to send
            return self._starves()
        if what not in ("join", "result"):
            return False
        called, _ = self.inside("side")
        return called == "no answer" or (called == "receive" and self._starves())

    def _starves(self) -> bool:
        """Whether the worker has all that was sent, and waits for more."""
        return self.received == self.sent < self.expects

    def engine(self) -> str | None:
        """Return the engine's state, or ``None`` while it changes. The main thread must rest."""
        inside = {self.inside(thread)[0] for thread in ("main", "side", ENGINE_THREAD)}
        if "receive" in inside:
            return "receiving" if self._starves() else None
        if "no answer" in inside:
            return "joining"
        return "idle" if self.side_calls == 0 else None

    def shown(self) -> str:
        """Return how far it came, in one line."""
        if self.ended is not None:
            return self.ended
        threads = sorted(thread for thread, waits in self.waits.items() if waits)
        inside = [f"its {thread} thread in {self.inside(thread)[0]!r}" for thread in threads]
        return ", ".join([f"{len(self.lines['main'])} lines so far", *inside])

    def trace(self) -> RankTrace:
        """Return what is known, once nothing moves any more."""
        what, _ = self.inside("main")
        return RankTrace(
            main=self.lines["main"],
            side=self.lines["side"],
            ended=self.ended or f"blocked in {what}",
            engine=self.engine() or "busy",
            payloads=self.payloads,
        )


def _follow(ranks: Sequence[_Rank], pipes: Sequence[int]) -> None:
    """Read until every rank has ended or is stuck, and the engine rests."""
    deadline = time.monotonic() + LIMIT_S
    rank_of = dict(zip(pipes, ranks, strict=True))
    while not _at_rest(ranks):
        left_s = max(deadline - time.monotonic(), 0)
        ready, _, _ = select.select(list(rank_of), [], [], left_s)
        for pipe in ready:
            if data := os.read(pipe, READ_BYTES):
                rank_of[pipe].take(data)
            else:
                rank_of.pop(pipe).ended = "died"
        if not ready:
            shown = "\n".join(f"rank {index}: {rank.shown()}" for index, rank in enumerate(ranks))
            raise AssertionError(
                f"expected every rank to end or to be stuck within {LIMIT_S:g} s, found\n{shown}"
            )


def _at_rest(ranks: Sequence[_Rank]) -> bool:
    """Whether nothing can move any more, given what the ranks have said.

    A rank has ended; or waits for an engine that will do nothing; or is in a collective that
    another one at rest never entered. That is certain: a rank says that it enters a collective
    before it does, so none of them can have been let through.
    """
    resting = [rank.ended is not None or rank.is_stuck_alone() for rank in ranks]
    while True:
        before = list(resting)
        for index, rank in enumerate(ranks):
            resting[index] = resting[index] or (
                rank.inside("main")[1]
                and any(
                    rests and other.collectives < rank.collectives
                    for rests, other in zip(before, ranks, strict=True)
                )
            )
        if resting == before:
            break
    return all(resting) and all(rank.engine() is not None for rank in ranks)
