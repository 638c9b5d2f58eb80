"""Gives every rank a command, and watches until each has ended it or none can any more."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from harness.child import Child
from harness.faults import FAULTS
from harness.monitors import wording
from harness.monitors.classify import Diagnosis, Kind, classify, slow
from harness.monitors.graph import Hope
from harness.monitors.lookout import Endings, Lookout
from harness.monitors.progress import Progress
from harness.monitors.proof import in_groups
from harness.monitors.snapshot import Snapshot
from harness.monitors.stack_head import stack_head
from harness.observation import Halt, RankEnding
from harness.stage import Stage

QUIET_S = 0.15  # without progress for this long, ask everybody what they wait for
POLL_S = 0.04
PATIENCE_S = 1.0  # the longest time between two looks at one stall
EVIDENCE_LIMIT_S = 1.0
DEATH_LIMIT_S = 10.0
SLOW_S = 0.5  # a stall that ended by itself is told of from here on
STRUCK = frozenset({"kill"})  # fault kinds that end the process they strike
SIGNALS = {each.value: each.name for each in signal.Signals}
GRAPH = "wait-for graph"  # its place among the evidence
NEVER_AGAIN: tuple[Hope, ...] = ("stopped", "mute", "code")  # where such a fault leaves a rank
FAULTS_FOLDER = "/harness/faults/"

Doing = Callable[[str], None]
Tasks = Mapping[int, "asyncio.Task[RankEnding]"]


@dataclass
class _Stall:
    """A while without progress.

    Attributes:
        since_s: the last progress.
        look_s: when to look at it again.
        pause_s: how long to wait after that look.
        num_events: number of events when it was noticed.
        snapshot, diagnosis: the latest ones.
    """

    since_s: float
    look_s: float = 0.0
    pause_s: float = POLL_S
    num_events: int = 0
    snapshot: Snapshot | None = None
    diagnosis: Diagnosis | None = None


class Watch:
    """The ranks of one stage under one command at a time.

    Args:
        doing: told, now and then, what the sender is doing.

    Attributes:
        diagnoses: what each stall and each death of the last command was, in order.
    """

    def __init__(self, stage: Stage, progress: Progress, *, doing: Doing) -> None:
        self.diagnoses: list[Kind] = []
        self._stage = stage
        self._progress = progress
        self._doing = doing
        self._deadline_s = stage.scenario.limit_s
        self._lookout = Lookout(stage, progress)
        self._born: dict[Child, int] = {}  # number of events when its first command came
        self._stall: _Stall | None = None
        self._noted: Diagnosis | None = None  # the last stall of this command that was told of
        self._excused: frozenset[int] = frozenset()

    async def command(
        self, message: Mapping[str, Any]
    ) -> tuple[dict[int, RankEnding], Halt | None]:
        """Give every rank a command; return how it ended on each, and why it was cut short."""
        command, ranks = message["cmd"], self._stage.ranks
        self._progress.catch_up()
        for child in ranks.values():
            self._born.setdefault(child, len(self._progress.events))
            await send(child, message)
        self._stall, self._noted, self._excused = None, None, frozenset()
        self.diagnoses.clear()
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
        endings = {
            rank: _result(task, struck=rank in self._excused) for rank, task in tasks.items()
        }
        return endings, halted

    async def _watch(self, tasks: Tasks, end_s: float) -> Halt | None:
        while waiting := [rank for rank, task in tasks.items() if not task.done()]:
            if self._excused.issuperset(waiting):
                return None
            await asyncio.wait(
                [tasks[rank] for rank in waiting],
                timeout=self._until_next_look(),
                return_when=asyncio.FIRST_COMPLETED,
            )
            self._progress.catch_up()
            self._doing(self._progress.doing.get("rank:0", ""))
            if self._stall is not None and self._stall.since_s != self._progress.last_s:
                self._note_end_of_stall(self._stall)
            now_s = time.monotonic()
            halted = None
            if all(task.done() for task in tasks.values()):
                continue
            if now_s > end_s:
                halted = await self._overran(tasks)
            elif now_s - self._progress.last_s > QUIET_S:
                halted = await self._look(tasks, now_s)
            if halted is not None:
                return halted
        return None

    def _until_next_look(self) -> float:
        """Return how long to wait now: to the end of the quiet window, where that is near."""
        quiet_s = self._progress.last_s + QUIET_S - time.monotonic()
        return min(POLL_S, quiet_s + 0.001) if quiet_s > 0 else POLL_S

    async def _ending(self, rank: int, child: Child, command: str) -> RankEnding:
        """Wait until a rank has ended a command, or died."""
        while (reply := await child.receive()) is not None:
            if reply["reply"] == "evidence":
                self._lookout.note(rank, child, reply)
            elif reply["reply"] == command:
                return _ending_of(reply)
        try:
            status = await child.wait(DEATH_LIMIT_S)
        except TimeoutError as late:
            return RankEnding(ending="died", error=f"closed its channel and lives on: {late}")
        self._progress.catch_up()
        self._note_death(child, status)
        struck = any(event["kind"] in STRUCK for event in self._faults_at(child))
        error = "" if struck else f"ended with status {status}: {child.log_tail(8)}"
        return RankEnding(ending="died", exit_status=status, struck=struck, error=error)

    def _faults_at(self, child: Child) -> list[dict[str, Any]]:
        """Return the faults that struck a rank since its first command."""
        return [
            event
            for event in self._progress.events[self._born[child] :]
            if event["event"] == "fault" and event["who"] == child.name
        ]

    # ---- when nothing moves ----

    async def _look(self, tasks: Tasks, now_s: float) -> Halt | None:
        """Ask everybody what they are in; halt if nobody can move any more."""
        since_s = self._progress.last_s
        if self._stall is None or self._stall.since_s != since_s:
            self._stall = _Stall(since_s, num_events=len(self._progress.events))
        stall = self._stall
        if now_s < stall.look_s:
            return None
        diagnosis = await self._diagnose(tasks, stall)
        if diagnosis is not None and diagnosis.kind is Kind.DEADLOCK:
            # A second look, begun after the first has ended: whoever is in the same waits in both
            # was in them at one moment, together with all the others.
            waits = diagnosis.graph.waits
            diagnosis = await self._diagnose(tasks, stall, thoroughly=True)
            if diagnosis is not None and diagnosis.kind is Kind.DEADLOCK:
                if diagnosis.graph.waits == waits:
                    return await self._halt("deadlock", diagnosis.sentence, diagnosis, tasks)
                diagnosis = None
        if diagnosis is not None:
            if not diagnosis.same_as(self._noted):
                self._note(diagnosis.kind, diagnosis.sentence, diagnosis.who)
            stall.diagnosis = self._noted = diagnosis
        if stall.snapshot is not None:
            await self._excuse(tasks, stall.snapshot)
        stall.look_s = time.monotonic() + stall.pause_s
        stall.pause_s = min(1.5 * stall.pause_s, PATIENCE_S)
        return None

    async def _diagnose(
        self, tasks: Tasks, stall: _Stall, *, thoroughly: bool = False
    ) -> Diagnosis | None:
        """Return what the stall is; ``None`` where it is over, or may be nothing."""
        endings = _endings(tasks)
        snapshot = await self._lookout.look(
            endings, limit_s=EVIDENCE_LIMIT_S, thoroughly=thoroughly
        )
        self._progress.catch_up()
        if self._progress.last_s != stall.since_s or endings != _endings(tasks):
            return None
        stall.snapshot = snapshot
        return classify(snapshot)

    async def _excuse(self, tasks: Tasks, snapshot: Snapshot) -> None:
        """Wait no longer for ranks that a fault keeps for ever, once all the others have ended."""
        unfinished = [rank for rank, task in tasks.items() if not task.done()]
        if unfinished != snapshot.unfinished:
            return
        for rank in unfinished:
            child = self._stage.ranks[rank]
            if not any(FAULTS[event["kind"]].never_returns for event in self._faults_at(child)):
                return
        stuck = classify(snapshot, limit_passed=True)
        if stuck is None or any(stuck.graph.hopes.get(r) not in NEVER_AGAIN for r in unfinished):
            return
        for rank in unfinished:
            stopped = snapshot.ranks[rank].process.is_stopped
            if not stopped and FAULTS_FOLDER not in _main_thread(
                await self._stage.ranks[rank].stacks()
            ):
                return
        if stuck.kind is Kind.STUCK:
            self._note(stuck.kind, stuck.sentence, stuck.who)
        self._excused = frozenset(unfinished)

    async def _overran(self, tasks: Tasks) -> Halt:
        snapshot = await self._lookout.look(
            _endings(tasks), limit_s=EVIDENCE_LIMIT_S, thoroughly=True
        )
        diagnosis = classify(snapshot, limit_passed=True)
        assert diagnosis is not None, "a rank was waited for"
        what = f"{diagnosis.kind.words}: {diagnosis.sentence}"
        sentence = f"the deadline of {self._deadline_s:g} s passed; {what}"
        return await self._halt("overran", sentence, diagnosis, tasks, snapshot)

    async def _halt(
        self,
        kind: Literal["deadlock", "overran"],
        sentence: str,
        diagnosis: Diagnosis,
        tasks: Tasks,
        snapshot: Snapshot | None = None,
    ) -> Halt:
        waited_s = time.monotonic() - self._progress.last_s
        if snapshot is None:
            assert self._stall is not None
            assert self._stall.snapshot is not None
            snapshot = self._stall.snapshot
        self.diagnoses.append(diagnosis.kind)
        self._stage.record(
            "halt",
            kind=kind,
            classification=diagnosis.kind,
            sentence=sentence,
            waited_s=round(waited_s, 4),
            of=list(diagnosis.who),
            table=[asdict(row) for row in diagnosis.rows],
        )
        blocked = {rank: self._stage.ranks[rank] for rank in snapshot.unfinished}
        engines = {f"engine:{i}": c for i, c in self._stage.engines.items()}
        # A proof needs those that it names; what is not proven needs everybody.
        others = [c for who, c in engines.items() if kind == "overran" or who in diagnosis.who]
        stacks = await asyncio.gather(*(child.stacks() for child in (*blocked.values(), *others)))
        heads = {
            child.name.replace(":", " "): stack_head(stack)
            for child, stack in zip((*blocked.values(), *others), stacks, strict=True)
        }
        evidence = {GRAPH: f"{diagnosis.sentence}\n\n{in_groups(diagnosis.rows, heads)}"}
        for (rank, child), stack in zip(blocked.items(), stacks, strict=False):
            where = wording.rank_in_full(snapshot.ranks[rank])
            evidence[child.name] = f"{child.name} {where}\n{stack}"
        for child, stack in zip(others, stacks[len(blocked) :], strict=True):
            evidence[child.name] = stack
        return Halt(
            kind=kind,
            classification=diagnosis.kind,
            sentence=sentence,
            waited_s=waited_s,
            evidence=evidence,
        )

    # ---- what is told of stalls that end ----

    def _note(self, kind: Kind, sentence: str, who: tuple[str, ...]) -> None:
        waited_s = round(time.monotonic() - self._progress.last_s, 4)
        self.diagnoses.append(kind)
        self._stage.record(
            "diagnosis", kind=kind, sentence=sentence, of=list(who), waited_s=waited_s
        )

    def _note_end_of_stall(self, stall: _Stall) -> None:
        """Tell of ranks that kept the others waiting, and then were the first to go on."""
        self._stall = None
        waited_s = self._progress.last_s - stall.since_s
        if stall.snapshot is None or stall.diagnosis is not None or waited_s < SLOW_S:
            return
        diagnosis = slow(stall.snapshot, waited_s=waited_s)
        if diagnosis is not None and self._progress.first_mover(stall.num_events) in diagnosis.who:
            self._note(diagnosis.kind, diagnosis.sentence, diagnosis.who)

    def _note_death(self, child: Child, status: int) -> None:
        """Tell of a rank that died; its peers get as long to notice as after any progress."""
        name = child.name.replace(":", " ")
        how = f"ended with status {status}"
        if status < 0:
            how = f"was killed by {SIGNALS.get(-status, f'signal {-status}')}"
        last = self._progress.doing.get(child.name)
        self._note(
            Kind.CRASHED, f"{name} {how}" + (f", last in {last}" if last else ""), (child.name,)
        )
        self._progress.forget(child.name)
        self._progress.last_s = time.monotonic()


async def send(child: Child, message: Mapping[str, Any]) -> None:
    """Send a message to a process that may have died; waiting for its answer says so."""
    with contextlib.suppress(ConnectionError):
        await child.send(dict(message))


def _result(task: asyncio.Task[RankEnding], *, struck: bool) -> RankEnding:
    return RankEnding(ending="blocked", struck=struck) if task.cancelled() else task.result()


def _endings(tasks: Tasks) -> Endings:
    return {rank: task.result() if task.done() else None for rank, task in tasks.items()}


def _main_thread(stacks: str) -> str:
    """Return the stack of the main thread, which faulthandler dumps last."""
    return stacks.rpartition("hread 0x")[2]


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
