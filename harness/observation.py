"""What was seen of one run of a scenario, before anything is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.contracts import Json

Ending = Literal["returned", "raised", "died", "blocked"]

UNKNOWN_WEIGHTS = "unknown"  # the fingerprint of weights that nobody could look at


@dataclass(frozen=True, kw_only=True)
class RankEnding:
    """How one rank's connect or push ended.

    Attributes:
        ending: ``blocked`` where it never did.
        version: what its trainer counts as published, afterwards.
        causes: of the error, where it carries any; agreed ones are the same on every rank.
        result: what the target reported.
        exit_status: of a rank that died; negative for a signal.
        struck: a fault killed it, or keeps it for ever, so it does not count as a survivor.
        leaves: its error says that the rank must leave the job.
    """

    ending: Ending
    error: str = ""
    error_type: str = ""
    causes: tuple[str, ...] = ()
    version: str | None = None
    result: Mapping[str, Json] = field(default_factory=dict)
    exit_status: int | None = None
    struck: bool = False
    leaves: bool = False


@dataclass(frozen=True, kw_only=True)
class EngineSeen:
    """One engine's state between two pushes, read past its front end.

    Attributes:
        process: the pid; another one means that the engine was restarted.
        alive: the process answers.
        stuck: a worker is inside a call that does not end.
        serves: whether it answered a completion; ``None`` where it is paused and was not asked.
        sessions: by worker, whether its update session is open.
        fingerprint: short name of the weights it holds; ``None`` where a tensor is on meta,
            `UNKNOWN_WEIGHTS` where it does not show them (a real engine, while it is paused).
    """

    index: int
    process: int
    alive: bool
    label: str | None = None
    paused: bool | None = None
    stuck: bool = False
    serves: bool | None = None
    sessions: tuple[bool, ...] = ()
    fingerprint: str | None = None
    draft_fingerprint: str | None = None


@dataclass(frozen=True, kw_only=True)
class PushSeen:
    """One push, or the connect that failed before it.

    Attributes:
        number: from 1; one above the scenario's last for the closing push.
        ranks: by rank.
        connect_attempts: channels built or tried by the connect before it; ``None`` without one.
        before, after: the engines.
        halted: why the monitor ended it: a deadlock it saw, or its deadline.
        exported: pieces of shared memory that ranks had handed out and not released after it.
        stalls: what the monitor called each stall and each death in it, and in the connect before
            it, in order.
    """

    number: int
    ranks: Mapping[int, RankEnding]
    before: tuple[EngineSeen, ...]
    after: tuple[EngineSeen, ...]
    connect_attempts: int | None = None
    connect_failed: bool = False
    halted: Halt | None = None
    stalls: tuple[str, ...] = ()
    exported: int = 0

    @property
    def survivors(self) -> list[RankEnding]:
        """The ranks that no fault killed, or keeps for ever."""
        return [rank for rank in self.ranks.values() if not rank.struck]

    @property
    def outcome(self) -> str:
        """``resumed``, ``degraded``, ``raised``, ``deadlock``, ``overran`` or ``mixed``, of the
        survivors."""
        if self.halted is not None:
            return self.halted.kind
        endings = {rank.ending for rank in self.survivors}
        if endings <= {"raised"}:
            return "raised"
        degraded = {bool(rank.result.get("degraded")) for rank in self.survivors}
        if endings != {"returned"} or len(degraded) > 1:
            return "mixed"
        return "degraded" if degraded == {True} else "resumed"

    @property
    def quarantined(self) -> frozenset[int]:
        """The engines that the senders report as left out."""
        engines = self.report().get("engines", ())
        return frozenset(engine["index"] for engine in engines if engine.get("quarantined"))

    @property
    def version(self) -> str | None:
        """What the trainer counts as published; rank 0's word, or the lowest survivor's."""
        for _, rank in sorted(self.ranks.items()):
            if not rank.struck and rank.version is not None:
                return rank.version
        return None

    def report(self) -> Mapping[str, Json]:
        """What the first rank that is left reported, with the engines of every rank's report."""
        ranks = sorted(self.ranks.items())
        report = dict(next((rank.result for _, rank in ranks if rank.result), {}))
        engines: dict[int, Json] = {}
        for _, rank in ranks:
            for place, engine in enumerate(rank.result.get("engines", ())):
                engines.setdefault(engine.get("index", place), engine)
        if engines:
            report["engines"] = [engines[index] for index in sorted(engines)]
        return report


@dataclass(frozen=True, kw_only=True)
class Halt:
    """Why the monitor ended a push that did not end itself.

    Attributes:
        kind: ``deadlock`` where nothing could have ended it any more, ``overran`` otherwise.
        classification: what it was: a ``harness.monitors.classify.Kind``.
        sentence: who waits for whom.
        waited_s: from the last progress to the report, in seconds.
        evidence: process name -> pending collectives and stacks, after the wait-for graph.
    """

    kind: Literal["deadlock", "overran"]
    classification: str = ""
    sentence: str
    waited_s: float
    evidence: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class RunSeen:
    """One run of a scenario, whole.

    Attributes:
        pushes: the scenario's, in order.
        closing: the clean push after them; ``None`` where there was none.
        fired: fault number -> ``engine:1``, ``engine:1/worker:0`` or ``rank:2`` -> the visits that
            it struck.
        events: the journal.
        leftovers: a sentence for each thing left behind.
        seconds: from the first process to the end of the last push of the scenario.
    """

    pushes: tuple[PushSeen, ...]
    closing: PushSeen | None
    fired: Mapping[int, Mapping[str, tuple[int, ...]]]
    events: tuple[Mapping[str, Any], ...]
    leftovers: tuple[str, ...]
    seconds: float
    total_seconds: float
