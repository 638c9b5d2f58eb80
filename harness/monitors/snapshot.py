"""What the wait-for graph is drawn from: every process of a push at one moment, as data.

Ranks, engines and their workers, open requests, collectives and timers. Times are seconds on the
machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Group = tuple[tuple[int, ...], str]  # members and purpose: what names a group alike on every rank
# A group, the number of a collective in it, and its operation: ranks that are at the same number in
# different operations do not meet.
Key = tuple[tuple[int, ...], str, int, str]


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective that a rank has entered and not left.

    Attributes:
        ranks: the members of its group, ascending; empty where they are not known.
        label: what the group was made for, as torch's ``group_desc``.
        seq: its number in the group, from 1.
        op: ``all_gather``, ``barrier``, ...
        sizes: shapes of its inputs.
        timeout_s: the group's time-out.
        ends_s: when that would end it.
    """

    ranks: tuple[int, ...]
    label: str
    seq: int
    op: str
    sizes: Sequence[Sequence[int]] = ()
    timeout_s: float | None = None
    ends_s: float | None = None

    @property
    def group(self) -> Group:
        """Its group, named alike on every rank."""
        return self.ranks, self.label

    @property
    def key(self) -> Key:
        """The collective, named alike on every rank."""
        return self.ranks, self.label, self.seq, self.op


@dataclass(frozen=True, kw_only=True)
class Timer:
    """A wait of the target that ends by itself.

    Attributes:
        what: ``update of engine 0``, ``idle of engine 1``, ``a wait for a lock``.
        limit_s: how long it may take from its begin; ``None`` where only its end is known, or
            neither is.
        ends_s: when it ends; ``None`` where that is not known.
        engine: whom it waits for, if that is one engine.
    """

    what: str
    limit_s: float | None = None
    ends_s: float | None = None
    engine: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessAt:
    """What the kernel says of a process.

    Attributes:
        state: its letter: R, S, D, T (stopped), Z; ``None`` where it was not asked, or is gone.
        cpu: share of one CPU that it used while it was asked and did not answer.
        runnable: whether one of its threads runs, or would if it were given a CPU; asked with it.
        wait: what its main thread waits in, where that is no collective.
        ends_s: when that wait ends by itself; ``None`` for one without a limit.
    """

    state: str | None = None
    cpu: float | None = None
    runnable: bool = False
    wait: Literal["sleep", "lock", "poll"] | None = None
    ends_s: float | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it."""
        return self.state in ("T", "t")

    @property
    def is_in_no_endless_wait(self) -> bool:
        """Whether its main thread runs, or waits with a limit, or for what a collective never is:
        who is blocked in one waits for a lock without a limit."""
        return self.state == "R" or self.wait in ("sleep", "poll") or self.ends_s is not None


@dataclass(frozen=True, kw_only=True)
class RankAt:
    """Where one rank is.

    Attributes:
        ended: ``has returned``, ``has raised``, ``has died`` once its command is over.
        leaving: it has raised, and its process is about to leave.
        answers: whether the thread that tells of it does.
        collectives: those it is in; the last is the one that it entered last.
        passed: group -> number of the last collective in it that this rank has left.
        tensor: the tensor that it is gathering, if it is.
        channel: number of the broadcast that it waits for on the data plane, if it does.
        timers: its open requests and other bounded waits.
        process: of the ranks that are in no wait that is known, or do not answer; of all where
            the look was thorough.
    """

    ended: str | None = None
    leaving: bool = False
    answers: bool = True
    collectives: tuple[Collective, ...] = ()
    passed: Mapping[Group, int] = field(default_factory=dict)
    tensor: str | None = None
    channel: int | None = None
    timers: tuple[Timer, ...] = ()
    process: ProcessAt = ProcessAt()

    def has_entered(self, collective: Collective) -> bool:
        """Whether it is in this collective, or has left it."""
        if any(each.key == collective.key for each in self.collectives):
            return True
        return self.passed.get(collective.group, 0) >= collective.seq


@dataclass(frozen=True, kw_only=True)
class WorkerAt:
    """Where one worker of an engine is.

    Attributes:
        call: the RPC that it is in, if any.
        active: whether its update session is open; ``None`` where the engine does not tell.
        receives: number of the broadcast that it waits for on the data plane, if it does.
    """

    call: str | None = None
    active: bool | None = None
    receives: int | None = None


@dataclass(frozen=True, kw_only=True)
class EngineAt:
    """Where one engine is.

    Attributes:
        exit_status: of one that has ended.
        answers: whether its front end told of its workers; ``None`` where it was not asked.
        requests: the fault points of the requests that it has not answered.
        workers: as far as it told.
    """

    exit_status: int | None = None
    answers: bool | None = None
    requests: tuple[str, ...] = ()
    workers: tuple[WorkerAt, ...] = ()
    process: ProcessAt = ProcessAt()


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everybody at one moment.

    Attributes:
        at_s: when it was taken.
        ranks, engines: by number.
        unclaimed: requests that engines have not answered, of a target that does not tell which
            requests it waits for, nor for how long: any rank may be waiting for them.
    """

    at_s: float
    ranks: Mapping[int, RankAt]
    engines: Mapping[int, EngineAt] = field(default_factory=dict)
    unclaimed: tuple[str, ...] = ()

    @property
    def unfinished(self) -> list[int]:
        """The ranks whose command has not ended, ascending."""
        return sorted(rank for rank, at in self.ranks.items() if at.ended is None)
