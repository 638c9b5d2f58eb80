"""Generation around a push: paused before, published, resumed, and put back when it fails."""

from __future__ import annotations

import pytest
from fake_vllm import Strike
from push_world import MakeWorld, World

from resync import Bytes, PushFailed


def failed(world: World) -> PushFailed:
    """Push, which must raise the same error on every rank; return the sender's."""
    errors = world.push()
    assert all(isinstance(error, PushFailed) for error in errors)
    assert len({str(error) for error in errors}) == 1
    assert isinstance(errors[0], PushFailed)
    return errors[0]


def refuse_to_open(rank: int, nth: int) -> None:
    """Make no channel."""
    raise OSError("port taken")


def open_again(rank: int, nth: int) -> None:
    """Let channels be made."""


# ---- quiesce ----

QUIESCE_FAULTS = [
    ("is_paused", "reject"),
    ("version", "reject"),
    ("pause", "reject"),
    ("pause", "reply_lost"),
    ("flush", "reject"),
    ("flush", "reply_lost"),
]


@pytest.mark.parametrize(("action", "kind"), QUIESCE_FAULTS)
def test_quiescing_fails(make_world: MakeWorld, action: str, kind: str) -> None:
    """A failed pause or flush resumes what this push paused, never what was paused before."""
    world = make_world(engines=3)
    world.fakes[2].paused = True
    world.connected()
    world.wire.strikes.append(Strike(action=action, kind=kind, engine=1))
    error = failed(world)
    assert str(error).startswith("push of version 1 failed (quiescing): rank 0, step quiesce, eng")
    assert world.paused == [False, False, True]
    assert [engine.bytes for engine in error.report.engines] == [Bytes.UNCHANGED] * 3
    assert (world.labels, world.versions) == (["default"] * 3, [0, 0])
    assert (error.report.attempts, error.report.num_bytes) == ([], 0)
    world.pushed()
    assert (world.labels, world.paused) == (["1"] * 3, [False] * 3)


def test_dirty_engine_stays_paused(make_world: MakeWorld) -> None:
    """An engine whose bytes are dirty is not resumed, even if somebody let it run meanwhile."""
    world = make_world(engines=2).connected()
    world.wire.strikes.append(Strike(action="update", kind="raise", always=True))
    failed(world)
    world.heal()
    world.fakes[0].paused = False
    world.wire.strikes.append(Strike(action="flush", kind="reject", engine=1))
    error = failed(world)
    assert world.paused == [True, True]
    assert [engine.bytes for engine in error.report.engines] == [Bytes.DIRTY] * 2


def test_paused_between_pushes(make_world: MakeWorld) -> None:
    """What an earlier push paused is not this push's to resume."""
    world = make_world(engines=2).connected()
    world.wire.strikes.append(Strike(action="flush", kind="reject", engine=1))
    failed(world)
    assert world.paused == [False, False]
    world.fakes[0].paused = True
    world.wire.strikes.append(Strike(action="is_paused", kind="reject", engine=0))
    failed(world)
    assert world.paused == [True, False]


@pytest.mark.parametrize("kind", ["reject", "request_lost", "reply_lost"])
def test_resuming_after_a_failed_flush_fails_once(make_world: MakeWorld, kind: str) -> None:
    """A resume of what this push paused is repeated, where the engine says that it is paused."""
    world = make_world(engines=2).connected()
    world.wire.strikes += [
        Strike(action="flush", kind="reject", engine=1),
        Strike(action="resume", kind=kind, engine=0),
    ]
    assert [cause.engine for cause in failed(world).causes] == [1]
    assert world.paused == [False, False]
    assert world.wire.actions(0).count("resume") == (1 if kind == "reply_lost" else 2)


def test_resuming_after_a_failed_flush_fails(make_world: MakeWorld) -> None:
    """An engine that cannot be put back is named next to the failure."""
    world = make_world(engines=2).connected()
    world.wire.strikes += [
        Strike(action="flush", kind="reject", engine=1),
        Strike(action="resume", kind="reject", engine=0, always=True),
    ]
    assert [(cause.engine, cause.message) for cause in failed(world).causes] == [
        (1, "engine 1: flush: expected HTTP 200, found 500: refused by the front end"),
        (0, "engine 0: resume: expected HTTP 200, found 500: refused by the front end"),
    ]
    assert world.paused == [True, False]


# ---- publish ----


@pytest.mark.parametrize("kind", ["reject", "lie", "reply_lost", "request_lost"])
def test_publish_is_retried(make_world: MakeWorld, kind: str) -> None:
    """A version that was refused, lost or did not show is published once more, in place."""
    world = make_world(engines=2).connected()
    world.wire.strikes.append(Strike(action="publish", kind=kind, engine=1))
    report = world.pushed()[0]
    assert (report.retries, len(report.attempts)) == (1, 1)
    assert (world.labels, world.paused, world.versions) == (["1", "1"], [False, False], [1, 1])


def test_stale_version(make_world: MakeWorld) -> None:
    """A version that never shows: paused, counter unchanged, the engine that is ahead is named."""
    world = make_world(engines=2).connected()
    world.wire.strikes.append(Strike(action="publish", kind="lie", engine=1, always=True))
    error = failed(world)
    assert str(error) == (
        "push of version 1 failed (publishing the version): rank 0, step commit, engine 1: "
        "EngineMismatch: engine 1: publish: engine 1: read-back: expected weight version 1, found "
        "default; engines that show version 1 already: [0]"
    )
    assert (world.labels, world.paused, world.versions) == (["1", "default"], [True] * 2, [0, 0])
    assert [engine.bytes for engine in error.report.engines] == [Bytes.COMMITTED] * 2
    assert len(error.report.attempts) == 1
    world.heal()
    world.pushed()
    assert "reconnect" not in world.steps_heard
    assert (world.labels, world.paused, world.versions) == (["1", "1"], [False] * 2, [1, 1])
    assert world.weights == ["target 2"] * 2


# ---- resume ----

# fmt: off
RESUMES = [
    # kind          resumes asked of the engine
    ("reject",       2),
    ("request_lost", 2),
    ("reply_lost",   1),
    ("lie",          2),
]
# fmt: on


@pytest.mark.parametrize(("kind", "num_resumes"), RESUMES)
def test_resume_fails_once(make_world: MakeWorld, kind: str, num_resumes: int) -> None:
    """A resume is repeated only where the engine says that it is paused still."""
    world = make_world(engines=2).connected()
    world.wire.strikes.append(Strike(action="resume", kind=kind, engine=1))
    report = world.pushed()[0]
    assert report.retries == num_resumes - 1
    assert world.wire.actions(1).count("resume") == num_resumes
    assert [(engine.paused, engine.label) for engine in report.engines] == [(False, "1")] * 2


@pytest.mark.parametrize("kind", ["reject", "lie"])
def test_resume_never_works(make_world: MakeWorld, kind: str) -> None:
    """The others are paused again, the version is published and counted, every rank raises."""
    world = make_world(engines=3).connected()
    world.wire.strikes.append(Strike(action="resume", kind=kind, engine=1, always=True))
    error = failed(world)
    assert "(resuming)" in str(error)
    assert (world.paused, world.labels, world.versions) == ([True] * 3, ["1"] * 3, [1, 1])
    assert [engine.bytes for engine in error.report.engines] == [Bytes.COMMITTED] * 3
    world.heal()
    world.pushed()
    assert (world.paused, world.labels, world.versions) == ([False] * 3, ["2"] * 3, [2, 2])


# ---- restarted engines and foreign writers ----


def test_restarted_between_pushes(make_world: MakeWorld) -> None:
    """A restarted engine is noticed by its label and joins a new channel before the send."""
    world = make_world(engines=2, transport="nccl").connected()
    world.pushed()
    world.fakes[1].restart()
    report = world.pushed()[0]
    assert len(report.attempts) == 1
    assert world.steps_heard.count("reconnect") == 1
    assert world.wire.actions(1).count("init") == 2
    assert (world.labels, world.weights) == (["2", "2"], ["target 2"] * 2)
    assert "reconnect" not in world.pushed()[0].seconds


@pytest.mark.parametrize("pushes_before", [0, 1])
@pytest.mark.parametrize("action", ["start", "update", "finish", "probe"])
def test_restarted_during_a_push(make_world: MakeWorld, action: str, pushes_before: int) -> None:
    """A restart between quiesce and commit fails the attempt; the resend reaches the new engine,
    also where its label is the one that was expected."""
    world = make_world(engines=2).connected()
    for _ in range(pushes_before):
        world.pushed()
    for engine in world.fakes:
        engine.violations.clear()
    world.wire.strikes.append(Strike(action=action, kind="restart", engine=1))
    report = world.pushed()[0]
    assert len(report.attempts) == 2
    version = pushes_before + 1
    assert (world.labels, world.weights) == ([str(version)] * 2, [f"target {version}"] * 2)
    world.fakes[1].violations.clear()  # a start that was on its way when the engine came back


def test_foreign_label_during_a_push(make_world: MakeWorld) -> None:
    """A label that is neither the last one nor ours fails the attempt, and names both."""
    world = make_world().connected()
    world.wire.strikes.append(Strike(action="version", kind="foreign", nth=2))
    report = world.pushed()[0]
    assert [cause.message for cause in report.attempts[0].causes] == [
        "engine 0: verify: expected weight version default, found other: the engine was restarted "
        "or another trainer writes to it"
    ]
    assert (world.labels, world.weights) == (["1"], ["target 1"])


def test_reconnecting_fails(make_world: MakeWorld) -> None:
    """No channel for a restarted engine: nothing was written, so what was running runs again."""
    world = make_world(engines=2).connected()
    world.pushed()
    world.fakes[1].restart()
    world.on_open = refuse_to_open
    error = failed(world)
    assert str(error).startswith("push of version 2 failed (reconnecting): rank 0, step reconnect")
    assert world.paused == [False, False]
    assert [engine.bytes for engine in error.report.engines] == [Bytes.UNCHANGED] * 2
    world.on_open = open_again
    world.pushed()
    assert (world.labels, world.weights) == (["2", "2"], ["target 3"] * 2)
