"""What a stall is, from snapshots as data: deadlocks, and everything that only looks like one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from harness.monitors.classify import Kind, classify, slow
from harness.monitors.snapshot import (
    Collective,
    EngineAt,
    ProcessAt,
    RankAt,
    Snapshot,
    Timer,
    WorkerAt,
)

NOW_S = 100.0
ALL = (0, 1, 2)
PAIR = (0, 1)


def _collective(
    op: str, seq: int = 1, *, label: str = "default_pg", ranks: tuple[int, ...] = ALL
) -> Collective:
    return Collective(ranks=ranks, label=label, seq=seq, op=op)


def _at(
    op: str, seq: int = 1, *, label: str = "default_pg", ranks: tuple[int, ...] = ALL, **more: Any
) -> RankAt:
    return RankAt(collectives=(_collective(op, seq, label=label, ranks=ranks),), **more)


def _snapshot(
    ranks: Mapping[int, RankAt],
    engines: Mapping[int, EngineAt] | None = None,
    unclaimed: tuple[str, ...] = (),
) -> Snapshot:
    return Snapshot(at_s=NOW_S, ranks=ranks, engines=engines or {}, unclaimed=unclaimed)


def _request(action: str = "update", *, limit_s: float = 2.0, engine: int = 0) -> Timer:
    what = f"engine {engine}'s answer to {action}"
    return Timer(what=what, limit_s=limit_s, ends_s=NOW_S + 1.8, engine=engine)


RETURNED, RAISED, DIED = (RankAt(ended=f"has {word}") for word in ("returned", "raised", "died"))
IN_NONE = RankAt()
ON_CHANNEL = RankAt(channel=3)
GATHER = _at("all_gather", tensor="embed")
PAIR_GATHER = _at("all_gather", label="undefined", ranks=PAIR, tensor="embed")
BARRIER = _at("barrier")
# One that was entered before, and that the third rank has left out, is pending too.
OLDER = _collective("broadcast", 4)
BOTH_PENDING = RankAt(collectives=(OLDER, _collective("all_reduce", label="agree", ranks=PAIR)))
OLDER_PENDING = RankAt(collectives=(OLDER,))
IDLE = EngineAt(answers=True, workers=(WorkerAt(active=False),))
RECEIVING = EngineAt(answers=True, workers=(WorkerAt(call="update_weights", active=True),))

# fmt: off
DEADLOCKS = [
    # id, ranks, engines, the sentence
    ("sender-is-in-the-agreement",
     {0: _at("all_reduce", 7, label="resync_agreement"), 1: GATHER, 2: GATHER}, {},
     "rank 0 is in all_reduce #7 of the agreement group while ranks 1-2 wait for it in the gather "
     "of embed"),
    ("same-number-different-operation",
     {0: _at("all_reduce"), 1: BARRIER, 2: BARRIER}, {},
     "rank 0 is in all_reduce #1 of the default group while ranks 1-2 wait for it in barrier #1 of "
     "the default group"),
    ("same-operation-different-number",
     {0: _at("barrier", 2), 1: BARRIER, 2: BARRIER}, {},
     "rank 0 is in barrier #2 of the default group while ranks 1-2 wait for it in barrier #1 of "
     "the default group"),
    ("same-operation-different-group",
     {0: _at("barrier", label="agree", ranks=PAIR), 1: _at("barrier", ranks=PAIR)}, {},
     "rank 0 is in barrier #1 of the agree group while rank 1 waits for it in barrier #1 of the "
     "default group"),
    ("member-returned", {0: RETURNED, 1: GATHER, 2: GATHER}, {},
     "rank 0 has returned while ranks 1-2 wait for it in the gather of embed"),
    ("member-raised", {0: RAISED, 1: BARRIER, 2: BARRIER}, {},
     "rank 0 has raised while ranks 1-2 wait for it in barrier #1 of the default group"),
    ("members-died", {0: DIED, 1: BARRIER, 2: DIED}, {},
     "ranks 0, 2 have died while rank 1 waits for them in barrier #1 of the default group"),
    ("pair-without-its-other-half", {0: RAISED, 1: PAIR_GATHER, 2: RETURNED}, {},
     "rank 0 has raised while rank 1 waits for it in the gather of embed"),
    ("waits-behind-one-that-waits", {0: ON_CHANNEL, 1: BARRIER, 2: BARRIER}, {},
     "rank 0 waits for the other end of the channel, and no engine is receiving, while ranks 1-2 "
     "wait for it in barrier #1 of the default group"),
    ("nobody-receives", {0: ON_CHANNEL, 1: RETURNED, 2: RETURNED}, {0: IDLE},
     "rank 0 waits for the other end of the channel, and no engine is receiving"),
    ("one-of-two-engines-has-died", {0: ON_CHANNEL}, {0: RECEIVING, 1: EngineAt(exit_status=-9)},
     "rank 0 waits for the other end of the channel, and no engine is receiving"),
    ("two-senders-and-nobody-receives", {0: ON_CHANNEL, 1: ON_CHANNEL}, {},
     "ranks 0-1 wait for the other end of the channel, and no engine is receiving"),
    ("an-older-collective-is-pending-too", {0: BOTH_PENDING, 1: OLDER_PENDING, 2: RAISED}, {},
     "rank 2 has raised while rank 1 waits for it in broadcast #4 of the default group and rank 0 "
     "waits for rank 1 in all_reduce #1 of the agree group"),
    ("main-threads-in-collectives",
     {0: _at("barrier", process=ProcessAt(state="S", wait="lock")), 1: RETURNED, 2: RETURNED}, {},
     "ranks 1-2 have returned while rank 0 waits for them in barrier #1 of the default group"),
    ("one-has-passed-what-another-never-enters",
     {0: RankAt(ended="has returned", passed={(ALL, "default_pg"): 1}), 1: BARRIER, 2: RAISED}, {},
     "rank 2 has raised while rank 1 waits for it in barrier #1 of the default group"),
]
MAY_STILL_MOVE = [
    # id, ranks, engines
    ("nobody-waits", {0: RETURNED}, {}),
    ("everybody-is-there", {0: GATHER, 1: GATHER, 2: GATHER}, {}),
    ("under-way-in-one-group-of-two", {0: PAIR_GATHER, 1: PAIR_GATHER, 2: BARRIER}, {}),
    ("one-is-in-no-collective", {0: IN_NONE, 1: GATHER, 2: GATHER}, {}),
    ("all-in-none", {0: IN_NONE, 1: IN_NONE, 2: IN_NONE}, {}),
    ("members-unknown", {0: _at("barrier", ranks=()), 1: RETURNED}, {}),
    ("two-wait-for-each-other-and-a-third-may-end-that",
     {0: _at("barrier", label="agree", ranks=PAIR), 1: _at("barrier", ranks=PAIR), 2: IN_NONE}, {}),
    ("the-other-has-left-the-barrier-and-returned",
     {0: RankAt(ended="has returned", passed={(PAIR, "default_pg"): 1}),
      1: _at("barrier", ranks=PAIR)}, {}),
    ("the-other-is-one-barrier-further",
     {0: _at("barrier", 2, ranks=PAIR, passed={(PAIR, "default_pg"): 1}),
      1: _at("barrier", ranks=PAIR)}, {}),
    ("the-collective-is-another-threads-and-the-main-thread-runs",
     {0: _at("all_reduce", label="agree", process=ProcessAt(state="R")), 1: GATHER, 2: GATHER}, {}),
    ("who-raised-is-about-to-leave", {0: RankAt(ended="has raised", leaving=True), 1: GATHER,
                                      2: GATHER}, {}),
    ("an-engine-is-receiving", {0: ON_CHANNEL, 1: RETURNED, 2: RETURNED}, {0: RECEIVING}),
    ("an-engine-does-not-answer", {0: ON_CHANNEL}, {0: EngineAt(answers=False)}),
    ("a-brief-sleep-that-is-repeated",
     {0: RankAt(process=ProcessAt(state="S", wait="sleep", ends_s=NOW_S + 0.01)), 1: GATHER,
      2: GATHER}, {}),
    ("a-lock-without-a-limit",
     {0: RankAt(process=ProcessAt(state="S", wait="lock")), 1: GATHER, 2: GATHER}, {}),
    ("silent-and-not-running",
     {0: RankAt(answers=False, process=ProcessAt(state="S", cpu=0.0)), 1: GATHER, 2: GATHER}, {}),
]
STOPPED = RankAt(answers=False, process=ProcessAt(state="T", cpu=0.0))
HOLDS_GIL = RankAt(answers=False, process=ProcessAt(state="R", cpu=0.9))
SLEEPS = RankAt(process=ProcessAt(state="S", wait="sleep", ends_s=NOW_S + 2.5))
IN_LOCK = RankAt(process=ProcessAt(state="S", wait="lock", ends_s=NOW_S + 1.25))
ASKS = RankAt(timers=(_request(),))
FROZEN_ENGINE = EngineAt(answers=False, process=ProcessAt(state="T", cpu=0.0))
BUSY_ENGINE = EngineAt(answers=False, process=ProcessAt(state="R", cpu=1.0))
OTHERS_WAIT = " while ranks 1-2 wait for it in the gather of embed"
LIMIT = "engine 0's answer to update (its limit of 2 s, in 1.8 s, ends that)"
LOOKS_LIKE_ONE = [
    # id, ranks, engines, unclaimed, kind, who it is, the sentence
    ("stopped", {0: STOPPED, 1: GATHER, 2: GATHER}, {}, (), Kind.FROZEN, "rank:0",
     f"rank 0 is stopped{OTHERS_WAIT}"),
    ("stopped-in-a-collective-that-all-have-entered",
     {0: _at("barrier", process=ProcessAt(state="T"), answers=False), 1: BARRIER, 2: BARRIER}, {},
     (), Kind.FROZEN, "rank:0", "rank 0 is stopped"),
    ("holds-the-gil", {0: HOLDS_GIL, 1: GATHER, 2: GATHER}, {}, (), Kind.BUSY, "rank:0",
     f"rank 0 does not answer, using 90% of a CPU: one of its threads holds the GIL{OTHERS_WAIT}"),
    ("holds-the-gil-and-gets-little-of-a-loaded-machine",
     {0: RankAt(answers=False, process=ProcessAt(state="S", cpu=0.04, runnable=True)), 1: RETURNED},
     {}, (), Kind.BUSY, "rank:0",
     "rank 0 does not answer, using 4% of a CPU: one of its threads holds the GIL"),
    ("sleeps", {0: SLEEPS, 1: GATHER, 2: GATHER}, {}, (), Kind.SLOW, "rank:0",
     f"rank 0 is in no collective and sleeps for another 2.5 s{OTHERS_WAIT}"),
    ("everybody-sleeps", {0: SLEEPS, 1: SLEEPS}, {}, (), Kind.WAITING, "rank:0",
     "ranks 0-1 are in no collective and sleep for another 2.5 s"),
    ("waits-for-a-lock-with-a-limit", {0: IN_LOCK, 1: GATHER, 2: GATHER}, {}, (), Kind.WAITING,
     "rank:0", "rank 0 waits for a lock or an event (its own limit, in 1.2 s, ends that)"
     f"{OTHERS_WAIT}"),
    ("the-collective-is-another-threads-and-the-main-thread-waits-with-a-limit",
     {0: _at("all_reduce", label="agree", process=IN_LOCK.process), 1: GATHER, 2: GATHER}, {}, (),
     Kind.WAITING, "rank:0", "rank 0 waits for a lock or an event (its own limit, in 1.2 s, ends "
     f"that){OTHERS_WAIT}"),
    ("asks-an-engine", {0: ASKS, 1: GATHER, 2: GATHER}, {0: RECEIVING}, (), Kind.WAITING,
     "engine:0", f"rank 0 waits for {LIMIT}{OTHERS_WAIT}; in engine 0 worker 0 is in "
     "update_weights"),
    ("asks-and-is-in-a-gather-that-nobody-joins",
     {0: _at("all_gather", tensor="norm", timers=(_request(),)), 1: RETURNED, 2: RETURNED}, {}, (),
     Kind.WAITING, "engine:0", f"rank 0 waits for {LIMIT}"),
    ("a-target-that-does-not-tell", {0: IN_NONE, 1: GATHER, 2: GATHER},
     {0: EngineAt(requests=("engine.update",))}, ("engine.update",), Kind.WAITING, "",
     "a request is not answered (engine.update), whose limit the target does not tell while ranks "
     "1-2 wait for rank 0 in the gather of embed"),
    ("asks-a-stopped-engine", {0: ASKS, 1: GATHER, 2: GATHER}, {0: FROZEN_ENGINE}, (), Kind.FROZEN,
     "engine:0", f"engine 0 is stopped while rank 0 waits for {LIMIT}, and ranks 1-2 wait for it "
     "in the gather of embed"),
    ("asks-an-engine-that-holds-the-gil", {0: ASKS}, {0: BUSY_ENGINE}, (), Kind.BUSY, "engine:0",
     "engine 0 runs and does not answer: a thread holds the GIL, or its front end loops, while "
     f"rank 0 waits for {LIMIT}"),
    ("asks-an-engine-that-is-silent", {0: ASKS}, {0: EngineAt(answers=False)}, (), Kind.WAITING,
     "engine:0", f"rank 0 waits for {LIMIT}; in engine 0 nobody answers, and its process is idle"),
    ("asks-an-engine-that-died", {0: ASKS}, {0: EngineAt(exit_status=-9)}, (), Kind.CRASHED,
     "engine:0", f"engine 0 has ended with status -9 while rank 0 waits for {LIMIT}"),
    ("another-engine-is-stopped", {0: ASKS}, {0: RECEIVING, 1: FROZEN_ENGINE}, (), Kind.WAITING,
     "engine:0", f"rank 0 waits for {LIMIT}; in engine 0 worker 0 is in update_weights"),
]
STUCK = [
    # id, ranks, who it is, the sentence
    ("endless-loop", {0: IN_NONE, 1: GATHER, 2: GATHER}, "rank:0",
     f"rank 0 is in no collective{OTHERS_WAIT}"),
    ("leaked-lock", {0: RankAt(process=ProcessAt(state="S", wait="lock")), 1: GATHER, 2: GATHER},
     "rank:0", f"rank 0 is in no collective and waits for a lock without a limit{OTHERS_WAIT}"),
    ("silent-and-not-running",
     {0: RankAt(answers=False, process=ProcessAt(state="S", cpu=0.0)), 1: GATHER, 2: GATHER},
     "rank:0", f"rank 0 does not answer, using 0% of a CPU{OTHERS_WAIT}"),
    ("everybody-is-there-and-nobody-moves", {0: GATHER, 1: GATHER, 2: GATHER}, "rank:0",
     "ranks 0-2 are in the gather of embed"),
]
# fmt: on


@pytest.mark.parametrize(
    ("ranks", "engines", "sentence"),
    [case[1:] for case in DEADLOCKS],
    ids=[case[0] for case in DEADLOCKS],
)
def test_deadlocks(
    ranks: Mapping[int, RankAt], engines: Mapping[int, EngineAt], sentence: str
) -> None:
    """A cycle, or a wait for somebody who has left, is a deadlock, and is told in one sentence."""
    found = classify(_snapshot(ranks, engines))
    assert found is not None
    assert (found.kind, found.sentence) == (Kind.DEADLOCK, sentence)


@pytest.mark.parametrize(
    ("ranks", "engines"),
    [case[1:3] for case in DEADLOCKS],
    ids=[case[0] for case in DEADLOCKS],
)
def test_a_request_may_end_any_deadlock(
    ranks: Mapping[int, RankAt], engines: Mapping[int, EngineAt]
) -> None:
    """An engine that has not answered, asked by a target that does not tell, may free a rank."""
    found = classify(_snapshot(ranks, engines, unclaimed=("engine.update",)))
    assert found is not None
    assert found.kind is not Kind.DEADLOCK


@pytest.mark.parametrize(
    ("ranks", "engines"),
    [case[1:] for case in MAY_STILL_MOVE],
    ids=[case[0] for case in MAY_STILL_MOVE],
)
def test_may_still_move(ranks: Mapping[int, RankAt], engines: Mapping[int, EngineAt]) -> None:
    """Nothing is said of what may end by itself, until the limit: then it is not proven."""
    snapshot = _snapshot(ranks, engines)
    assert classify(snapshot) is None
    late = classify(snapshot, limit_passed=True)
    assert late is None if not snapshot.unfinished else late is not None
    assert late is None or late.kind is Kind.STUCK


@pytest.mark.parametrize(
    ("ranks", "engines", "unclaimed", "kind", "who", "sentence"),
    [case[1:] for case in LOOKS_LIKE_ONE],
    ids=[case[0] for case in LOOKS_LIKE_ONE],
)
def test_what_only_looks_like_one(
    ranks: Mapping[int, RankAt],
    engines: Mapping[int, EngineAt],
    unclaimed: tuple[str, ...],
    kind: Kind,
    who: str,
    sentence: str,
) -> None:
    """Everything else is named for what it is, with who it is and what ends it."""
    for limit_passed in (False, True):
        found = classify(_snapshot(ranks, engines, unclaimed), limit_passed=limit_passed)
        assert found is not None
        assert (found.kind, found.sentence) == (kind, sentence)
        assert ",".join(found.who).startswith(who)


@pytest.mark.parametrize(
    ("ranks", "who", "sentence"), [case[1:] for case in STUCK], ids=[case[0] for case in STUCK]
)
def test_stuck(ranks: Mapping[int, RankAt], who: str, sentence: str) -> None:
    """What no graph shows is said to be unproven, by the limit, with who keeps the others."""
    found = classify(_snapshot(ranks), limit_passed=True)
    assert found is not None
    assert (found.kind, found.sentence, found.who[0]) == (Kind.STUCK, sentence, who)


def test_a_process_groups_time_out_is_named() -> None:
    """It would end a deadlock some day: it is named, with when, and changes nothing else."""
    gather = Collective(
        ranks=PAIR, label="undefined", seq=3, op="all_gather", timeout_s=30.0, ends_s=NOW_S + 29.8
    )
    ranks = {0: RAISED, 1: RankAt(collectives=(gather,), tensor="embed")}
    found = classify(_snapshot(ranks))
    assert found is not None
    assert (found.kind, found.sentence) == (
        Kind.DEADLOCK,
        "rank 0 has raised while rank 1 waits for it in the gather of embed; only the 30 s "
        "time-out of the group of ranks 0-1, in 29.8 s, would end it",
    )
    frozen = classify(_snapshot({**ranks, 0: STOPPED}))
    assert frozen is not None
    assert frozen.sentence == (
        "rank 0 is stopped (the 30 s time-out of the group of ranks 0-1, in 29.8 s, frees the "
        "others) while rank 1 waits for it in the gather of embed"
    )


def test_proof() -> None:
    """The table has each rank's group, operation, number, shape and tensor, and where those are
    whom it waits for."""
    gather = Collective(ranks=PAIR, label="tp", seq=3, op="all_gather", sizes=[[4, 2], [8]])
    ranks = {
        0: _at("all_reduce", 7, label="resync_agreement", ranks=PAIR),
        1: RankAt(collectives=(gather,), tensor="layers.0.mlp.up_proj.weight"),
    }
    found = classify(_snapshot(ranks, {0: IDLE}))
    assert found is not None
    in_reduce = "is in all_reduce #7 of the agreement group"
    in_gather = "is in the gather of layers.0.mlp.up_proj.weight"
    assert [(r.who, r.at, r.shape, r.tensor, r.waits_for) for r in found.rows] == [
        ("rank 0", in_reduce, "-", "-", f"rank 1, which {in_gather}"),
        ("rank 1", "is in all_gather #3 of the tp group", "[4, 2] [8]",
         "layers.0.mlp.up_proj.weight", f"rank 0, which {in_reduce}"),
        ("engine 0", "is idle", "session closed", "-", "answers: -"),
    ]  # fmt: skip


def test_slow() -> None:
    """Of a stall that ended it is told who kept the others waiting; where nobody did, nothing."""
    found = slow(_snapshot({0: IN_NONE, 1: GATHER, 2: GATHER}), waited_s=3.04)
    assert found is not None
    assert (found.kind, found.who) == (Kind.SLOW, ("rank:0",))
    assert found.sentence == f"rank 0 was at work for 3.0 s{OTHERS_WAIT}"
    for ranks in ({0: IN_NONE, 1: IN_NONE}, {0: ASKS, 1: GATHER, 2: GATHER}, {0: RETURNED}):
        assert slow(_snapshot(ranks), waited_s=3.0) is None
