"""What a module that keeps the contract does after a fault: the answers that `new` suggests.

Source: the outcome table of the design. Where it says nothing of a fault point, nothing is
suggested but that the push goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.faults import FAULTS
from harness.faults.kind import FaultKind

SHORT_S = 1.0  # time-outs of a scenario that waits them out
SMALL_STEP = 0.8  # of the init time-out: the rendezvous ends before it
START = ("engine.start", "worker.start")
UPDATE = ("engine.update", "worker.receive", "worker.load")
FINISH = ("engine.finish", "worker.finish")
CONNECT = ("engine.init", "engine.world_size", "worker.init", "rank.bind", "rank.rendezvous")
# Where a push begins: nothing is written yet, and what was paused runs again.
QUIESCE = ("engine.pause", "engine.flush", "engine.is_paused", "engine.version", "worker.pause")
# What ends a process, or the thread that would answer for it.
ENDS_A_PROCESS = ("freeze", "gil", "kill", "lock", "loop")
NEVER_ANSWERED = ("hang", "request_lost", "swallow")
MADE_GOOD = "what fails once is made good inside the push, so it ends like one without a fault"
LEFT_OPEN = "a rank that cannot go on leaves the job, and no engine is touched after it"
IN_TIME = "every answer comes within the request time-out"


@dataclass(frozen=True, kw_only=True)
class Struck:
    """What the advice depends on.

    Attributes:
        index: of the engine or rank; ``all`` where every one is struck.
        options: of the fault's kind.
    """

    kind: str
    at: str
    index: int | str
    push: int
    nth: tuple[int, ...] | str
    transport: str
    num_engines: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_once(self) -> bool:
        return self.nth != "always" and len(self.nth) == 1

    @property
    def effective_push(self) -> int:
        """The push whose expectation speaks of the fault: a connect belongs to the next push."""
        return max(self.push, 1)

    def of(self, *, struck: str, others: str) -> str | list[str]:
        """Return a value for each engine, or the one value that all share."""
        if self.index == "all" or self.num_engines == 1 or struck == others:
            return struck
        return [struck if each == self.index else others for each in range(self.num_engines)]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What should happen.

    Attributes:
        expect: of the push that is struck; ``outcome`` first.
        publishes: whether the trainer counts the push as published afterwards.
        extra: other keys of the file that follow from it.
    """

    expect: Mapping[str, Any]
    publishes: bool
    extra: Mapping[str, Any] = field(default_factory=dict)


def advise(struck: Struck) -> Advice:
    """Return what a module that keeps the contract does."""
    if struck.kind == "slow":
        return _resumed(struck, attempts=1, tolerates=IN_TIME)
    role = struck.at.partition(".")[0]
    never_returns = FAULTS[struck.kind].never_returns or struck.kind == "kill"
    ends = struck.kind in ENDS_A_PROCESS or (role != "engine" and never_returns)
    if struck.at in CONNECT:
        return _connect(struck)
    if ends:
        return _rank_lost(struck) if role == "rank" else _engine_lost(struck)
    if struck.at in QUIESCE:
        return _raised(struck, {"generation": "running", "bytes": "unchanged"})
    if struck.at in (*START, *UPDATE, *FINISH):
        return _attempt(struck)
    if struck.at == "engine.publish":
        return _publish(struck)
    if struck.at == "engine.resume":
        return _resume(struck)
    if role == "rank":
        return _raised(struck, {}, names_engine=False, waived={"no_open_session": LEFT_OPEN})
    return _resumed(struck, tolerates=MADE_GOOD)


def version_after(push: int) -> str:
    """Return the label of engines after so many pushes were published."""
    return str(push) if push else "default"


def _resumed(struck: Struck, *, tolerates: str | None = None, **counts: int) -> Advice:
    expect = {
        "outcome": "resumed",
        **counts,
        "version": version_after(struck.effective_push),
        "generation": "running",
        "bytes": "committed",
    }
    extra = _limits(struck) | ({} if tolerates is None else {"tolerates": tolerates})
    return Advice(expect=expect, publishes=True, extra=extra)


def _raised(
    struck: Struck,
    rest: Mapping[str, Any],
    *,
    attempts: int | None = None,
    names_engine: bool = True,
    publishes: bool = False,
    waived: Mapping[str, str] | None = None,
    timeouts: Mapping[str, float] | None = None,
) -> Advice:
    expect: dict[str, Any] = {"outcome": "raised"}
    if attempts is not None:
        expect["attempts"] = attempts
    before = struck.effective_push if publishes else struck.effective_push - 1
    expect["version"] = version_after(before)
    expect |= rest
    if names_engine and isinstance(struck.index, int) and not struck.at.startswith("rank."):
        expect["names_engine"] = struck.index
    extra = _limits(struck)
    if waived:
        extra["waive"] = waived
    if timeouts:
        extra["timeouts"] = timeouts
    return Advice(expect=expect, publishes=publishes, extra=extra)


def _limits(struck: Struck) -> dict[str, Any]:
    """Return short time-outs where the scenario waits them out."""
    silent = struck.kind in NEVER_ANSWERED or struck.options.get("silent") is True
    if struck.at in CONNECT:
        rendezvous_s = SMALL_STEP * SHORT_S
        limits = {"init_s": SHORT_S} if silent else {}
        return {"timeouts": {**limits, "rendezvous_s": rendezvous_s}}
    kind: type[FaultKind] = FAULTS[struck.kind]
    if struck.at.startswith("rank.") and kind.never_returns:
        return {"timeouts": {"init_s": 5.0, "request_s": 2.0, "process_group_s": 5.0}}
    if silent or kind.never_returns:
        return {"timeouts": {"request_s": SHORT_S}}
    return {}


def _connect(struck: Struck) -> Advice:
    if struck.is_once and struck.at != "engine.world_size":  # which is asked once
        return _resumed(struck, connect_attempts=2, attempts=1)
    return _raised(struck, {"generation": "running"}, names_engine=struck.at == "engine.init")


def _attempt(struck: Struck) -> Advice:
    """A start, update or finish that fails: one resend, then a raise with generation paused."""
    partly = struck.index != "all" and struck.num_engines > 1
    received = struck.kind == "reply_lost"
    if struck.transport == "nccl" and struck.at in UPDATE and partly and not received:
        # The engines that received while this one did not cannot be freed from outside.
        return _raised(struck, {}, names_engine=False, timeouts={"request_s": SHORT_S})
    if struck.is_once:
        return _resumed(struck, attempts=2)
    waived: dict[str, str] = {}
    if struck.at in FINISH:
        waived["no_open_session"] = "while every finish fails nothing can close the session"
    held = {"bytes": "unchanged" if struck.at == "engine.start" else "dirty"}
    if partly:
        held = {}
    return _raised(struck, {"generation": "paused", **held}, attempts=2, waived=waived)


def _publish(struck: Struck) -> Advice:
    if struck.is_once:
        return _resumed(struck, attempts=1, retries=1)
    new = version_after(struck.effective_push)
    old = version_after(struck.effective_push - 1)
    rest = {"version": struck.of(struck=old, others=new), "generation": "paused"}
    return _raised(struck, rest | {"bytes": "committed"}, attempts=1)


def _resume(struck: Struck) -> Advice:
    if struck.is_once and struck.kind == "reply_lost":
        return _resumed(struck, attempts=1, tolerates=MADE_GOOD)  # its state is read: it runs
    if struck.is_once:
        return _resumed(struck, attempts=1, retries=1)
    rest = {"generation": "paused", "bytes": "committed"}
    return _raised(struck, rest, attempts=1, publishes=True)


def _engine_lost(struck: Struck) -> Advice:
    """An engine that has gone, or that answers nothing any more."""
    at_worker = struck.at.startswith("worker.")
    stays = struck.kind == "freeze" or (at_worker and struck.kind not in ("gil", "kill"))
    left = "stuck" if stays else "dead"  # stuck: it takes connections and answers none
    alone = struck.transport == "nccl" and struck.at in UPDATE and struck.num_engines > 1
    # On NCCL the other engines go on receiving from a sender that has left.
    rest = {} if alone else {"generation": struck.of(struck=left, others="paused")}
    return Advice(
        expect={"outcome": "raised", **rest},
        publishes=False,
        extra={"timeouts": {"request_s": SHORT_S}},
    )


def _rank_lost(struck: Struck) -> Advice:
    rest = {"generation": "paused"} if struck.transport == "ipc" else {}
    return _raised(struck, rest, names_engine=False)
