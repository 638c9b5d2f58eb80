"""Whole pushes over thread ranks: what a failed start, update or finish comes to."""

from __future__ import annotations

import dataclasses
import logging
import re

import pytest
from fake_vllm import Strike
from push_world import QUICK, MakeWorld, World
from trainer_doubles import TENSOR_BYTES

from resync import Bytes, PushFailed

MODEL_BYTES = 3 * TENSOR_BYTES
QUIESCE = "is_paused version pause flush"
CONNECT = "world_size is_paused version init"
START = "is_paused start"
SEND = "update finish probe is_paused version"
COMMIT = "publish is_paused version resume is_paused"


def test_clean_push(make_world: MakeWorld) -> None:
    """A push without failures makes these requests, in this order, and reports what it did."""
    world = make_world(engines=2).connected()
    reports = world.pushed()
    asked = f"{CONNECT} {QUIESCE} {START} {SEND} {COMMIT}".split()
    assert [world.wire.actions(0), world.wire.actions(1)] == [asked, asked]
    steps = ["quiesce", "start", "transfer", "commit", "resume"]
    assert world.steps_heard == ["look", "connect", *steps]
    assert list(reports[0].seconds) == steps
    assert reports[0].to_json() == {
        "version": "1",
        "attempts": 1,
        "causes": [[]],
        "bytes_sent": [MODEL_BYTES],
        "seconds": {step: round(s, 6) for step, s in reports[0].seconds.items()},
        "retries": 0,
        "degraded": False,
        "engines": [
            {
                "index": i,
                "bytes": "committed",
                "label": "1",
                "paused": False,
                "quarantined": False,
            }
            for i in (0, 1)
        ],
    }
    assert (reports[1].engines, reports[1].num_bytes) == ((), MODEL_BYTES)
    resumed(world, version=1)


def resumed(world: World, *, version: int) -> None:
    """Check the outcome ``resumed``."""
    assert world.versions == [version] * world.ranks
    assert world.labels == [str(version)] * world.engines
    assert world.weights == [f"target {version}"] * world.engines
    assert world.paused == [False] * world.engines
    assert not any(engine.active for engine in world.fakes)
    assert {engine.prefix_cache for engine in world.fakes} == {"empty"}


def raised(world: World, outcomes: list[object], *, bytes_: list[Bytes]) -> PushFailed:
    """Check the outcome ``raised`` of a failed attempt; return the sender's error."""
    errors = [error for error in outcomes if isinstance(error, PushFailed)]
    assert len(errors) == world.ranks
    assert len({str(error) for error in errors}) == 1
    assert len({error.causes for error in errors}) == 1
    assert world.versions == [0] * world.ranks
    assert world.labels == ["default"] * world.engines
    assert world.paused == [True] * world.engines
    assert [engine.bytes for engine in errors[0].report.engines] == bytes_
    return errors[0]


# fmt: off
FAULTS = [
    # action    kind            rules; they differ where a worker raises
    ("start",   "reject",       "vllm-0.32"),
    ("start",   "raise",        "vllm-0.32"),
    ("start",   "request_lost", "vllm-0.32"),
    ("start",   "reply_lost",   "vllm-0.32"),
    ("update",  "reject",       "vllm-0.32"),
    ("update",  "raise",        "vllm-0.32"),
    ("update",  "raise",        "vllm-next"),
    ("update",  "request_lost", "vllm-0.32"),
    ("update",  "reply_lost",   "vllm-0.32"),
    ("finish",  "reject",       "vllm-0.32"),
    ("finish",  "raise",        "vllm-0.32"),
    ("finish",  "raise",        "vllm-next"),
    ("finish",  "request_lost", "vllm-0.32"),
    ("finish",  "reply_lost",   "vllm-0.32"),
    ("probe",   "reject",       "vllm-0.32"),
    ("version", "reject",       "vllm-0.32"),
]
# fmt: on
FAULT_IDS = ["-".join(fault) for fault in FAULTS]


def strike(action: str, kind: str, *, engine: int = 0) -> Strike:
    """Strike the first visit in the attempt; connecting and quiescing read the version too."""
    return Strike(action=action, kind=kind, engine=engine, nth=3 if action == "version" else 1)


@pytest.mark.parametrize("transport", ["ipc", "nccl"])
@pytest.mark.parametrize(("action", "kind", "rules"), FAULTS, ids=FAULT_IDS)
def test_one_failure(
    make_world: MakeWorld, action: str, kind: str, rules: str, transport: str
) -> None:
    """One failure anywhere in an attempt: one full resend over a fresh channel, then resumed."""
    world = make_world(
        transport=transport, rules=rules, engines=2, strikes=[strike(action, kind, engine=1)]
    ).connected()
    reports = world.pushed()
    resumed(world, version=1)
    for report in reports:
        assert len(report.attempts) == 2
        assert report.attempts[1].causes == ()
        assert report.num_bytes == MODEL_BYTES
        causes = report.attempts[0].causes
        assert [(cause.rank, cause.engine) for cause in causes] == [(0, 1)]
    sent_first = 0 if action == "start" else MODEL_BYTES
    assert reports[1].attempts[0].bytes_sent == sent_first
    passes = ["target 1"] * (1 if action == "start" else 2)
    assert [source.passes for source in world.sources] == [passes] * 2
    assert [len(built) for built in world.channels] == [2, 2]
    assert [built[0].closes for built in world.channels] == [1, 1]
    assert len(world.pushed()[0].attempts) == 1
    resumed(world, version=2)


# fmt: off
ALWAYS = [
    # action    kind     bytes            passes: a session that does not close costs no second one
    ("start",  "reject", Bytes.UNCHANGED, 0),
    ("update", "reject", Bytes.DIRTY,     2),
    ("update", "raise",  Bytes.DIRTY,     2),
    ("finish", "reject", Bytes.DIRTY,     1),
    ("finish", "raise",  Bytes.DIRTY,     1),
    ("probe",  "reject", Bytes.DIRTY,     2),
]
# fmt: on


@pytest.mark.parametrize("transport", ["ipc", "nccl"])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    ("action", "kind", "bytes_", "num_passes"), ALWAYS, ids=[f"{a}-{k}" for a, k, *_ in ALWAYS]
)
def test_every_attempt_fails(
    make_world: MakeWorld,
    action: str,
    kind: str,
    bytes_: Bytes,
    num_passes: int,
    ranks: int,
    transport: str,
) -> None:
    """Two failures: every rank raises the same error, paused at the old version; then a clean push
    succeeds."""
    world = make_world(ranks=ranks, engines=2, transport=transport).connected()
    world.wire.strikes.append(Strike(action=action, kind=kind, engine=0, always=True))
    error = raised(world, world.push(), bytes_=[bytes_] * 2)
    assert [len(attempt.causes) for attempt in error.report.attempts] == [1, 1]
    assert [source.passes for source in world.sources] == [["target 1"] * num_passes] * ranks
    assert world.steps_heard[-1] == "close"
    world.heal()
    report = world.pushed()[0]
    assert len(report.attempts) == 1
    assert "reconnect" in report.seconds  # nothing is sent over a channel that has failed
    assert world.weights == ["target 2"] * 2
    assert (world.labels, world.paused) == (["1", "1"], [False, False])


def test_the_message(make_world: MakeWorld) -> None:
    """The error names push, rank, step, engine and cause, of every attempt in order."""
    world = make_world(strikes=[Strike(action="update", kind="reject", always=True)]).connected()
    error = raised(world, world.push(), bytes_=[Bytes.DIRTY])
    cause = (
        "rank 0, step transfer, engine 0: EngineRejected: engine 0: update: expected HTTP 200, "
        "found 500: refused by the front end"
    )
    assert str(error) == f"push of version 1 failed (sending, 2 attempts): {cause} | {cause}"


# fmt: off
SEQUENCES = [
    # rules        action    kind          requests after the failed one, up to the resend's start
    ("vllm-0.32", "start",  "reject",     "pause version start finish init is_paused start"),
    ("vllm-0.32", "start",  "reply_lost",
     "metrics version metrics pause version start finish init is_paused start"),
    ("vllm-0.32", "update", "reject",     "pause version start finish init is_paused start"),
    ("vllm-0.32", "update", "raise",      "pause version start finish init is_paused start"),
    ("vllm-0.32", "finish", "raise",      "pause version finish init is_paused start"),
    ("vllm-next", "finish", "raise",
     "pause version finish start finish init is_paused start"),
    ("vllm-0.32", "finish", "reply_lost",
     "metrics version metrics pause version finish start finish init is_paused start"),
]
# fmt: on


@pytest.mark.parametrize(("rules", "action", "kind", "between"), SEQUENCES)
def test_clean_up_by_last_event(
    make_world: MakeWorld, rules: str, action: str, kind: str, between: str
) -> None:
    """What is asked of an engine between a failure and the resend follows from its last event."""
    world = make_world(rules=rules, strikes=[strike(action, kind)]).connected()
    world.pushed()
    first = f"{CONNECT} {QUIESCE} {START} {SEND}".split()
    upto = first[: first.index(action) + 1]
    expected = [*upto, *f"{between} {SEND} {COMMIT}".split()]
    assert world.wire.actions() == expected


@pytest.mark.parametrize("transport", ["ipc", "nccl"])
def test_request_that_hangs(make_world: MakeWorld, transport: str) -> None:
    """A request without an answer ends at its time-out and is a failure like any other."""
    world = make_world(
        transport=transport,
        timeouts=dataclasses.replace(QUICK, request_s=0.2),
        strikes=[Strike(action="update", kind="hang")],
    ).connected()
    report = world.pushed()[1]
    assert [cause.error for cause in report.attempts[0].causes] == ["EngineTimeout"]
    resumed(world, version=1)


@pytest.mark.parametrize("chunk", [1, 2])
def test_packed_ipc(make_world: MakeWorld, chunk: int) -> None:
    """A chunk that fails: the barriers of the later chunks are kept, their requests skipped."""
    world = make_world(
        trainer={"packed": True}, strikes=[Strike(action="update", kind="raise", nth=chunk)]
    ).connected()
    world.pushed()
    assert world.wire.actions().count("update") == chunk + 2
    resumed(world, version=1)


@pytest.mark.parametrize("sees", ["before the pass", "after the pass"])
def test_rejected_nccl_update(make_world: MakeWorld, sees: str) -> None:
    """A refused update ends the sender's end of the channel once; its pass is completed, drained
    bytes are not counted, and the resend uses a fresh channel."""
    world = make_world(
        ranks=3,
        engines=2,
        transport="nccl",
        trainer={"sees_rejection": sees},
        strikes=[Strike(action="update", kind="raise", engine=n) for n in (0, 1)],
    ).connected()
    reports = world.pushed()
    first, second = (double.model_update_group for double in world.channels[0])  # type: ignore[attr-defined]
    assert (first.destroyed, second.destroyed) == (1, 0)
    yielded = 0 if sees == "before the pass" else MODEL_BYTES
    assert reports[0].attempts[0].bytes_sent == yielded
    assert second.sent == ["q", "k", "v"]
    resumed(world, version=1)


def test_blocked_broadcast_is_freed(make_world: MakeWorld) -> None:
    """A sender that is in a broadcast when the update is refused comes back and resends."""
    world = make_world(
        transport="nccl",
        trainer={"blocks": True},
        strikes=[Strike(action="update", kind="raise")],
    ).connected()
    world.pushed()
    resumed(world, version=1)


@pytest.mark.parametrize("transport", ["ipc", "nccl"])
def test_no_pass_is_abandoned(make_world: MakeWorld, transport: str) -> None:
    """No generator of the source is closed in the middle of a collective pass."""
    world = make_world(
        transport=transport,
        trainer={"sees_rejection": "before the pass"},
        strikes=[Strike(action="update", kind="raise", always=True)],
    ).connected()
    world.push()
    assert [source.abandoned for source in world.sources] == [0, 0]


def test_mark_dirty(make_world: MakeWorld) -> None:
    """While bytes are not complete the label says so, after a push that raised too."""
    world = make_world(
        options={"mark_dirty": True}, strikes=[Strike(action="update", kind="raise", always=True)]
    ).connected()
    assert isinstance(world.push()[0], PushFailed)
    assert world.labels == ["updating:1"]
    world.heal()
    world.pushed()
    assert world.labels == ["1"]


def test_mark_dirty_reply_lost(make_world: MakeWorld) -> None:
    """A dirty label whose reply was lost is ours: the engine is not taken for a restarted one,
    whose unknown session would be closed."""
    world = make_world(
        options={"mark_dirty": True}, strikes=[Strike(action="publish", kind="reply_lost")]
    ).connected()
    world.pushed()
    first = f"{CONNECT} {QUIESCE} is_paused publish"
    second = f"metrics version metrics pause version init is_paused publish start {SEND} {COMMIT}"
    assert world.wire.actions() == f"{first} {second}".split()


def test_one_line_a_step(make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    """The sender logs each step once, with push, attempt, seconds, and the causes of a failure."""
    caplog.set_level(logging.INFO, logger="resync")
    world = make_world(strikes=[strike("finish", "raise")]).connected()
    caplog.clear()
    world.pushed()
    begins = [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
    assert [re.split(r" \d+\.\d{3} s", line)[0] for line in begins] == [
        "INFO push 1, attempt 1: quiesce ok in",
        "INFO push 1, attempt 1: start ok in",
        "WARNING push 1, attempt 1: transfer failed after",
        "INFO push 1, attempt 2: clean_up ok in",
        "INFO push 1, attempt 2: reconnect ok in",
        "INFO push 1, attempt 2: start ok in",
        "INFO push 1, attempt 2: transfer ok in",
        "INFO push 1, attempt 2: commit ok in",
        "INFO push 1, attempt 2: resume ok in",
    ]
    assert begins[2].endswith(
        " s: rank 0, step transfer, engine 0: EngineRejected: engine 0: finish: expected HTTP 200, "
        "found 500: injected"
    )
