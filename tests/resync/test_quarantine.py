"""Pushes that go on without an engine that nothing brings back."""

from __future__ import annotations

import dataclasses

import pytest
from fake_vllm import Strike
from push_world import QUICK, MakeWorld, World

from resync import Bytes, PushFailed, WeightUpdater

ASIDE = {"options": {"on_stuck": "quarantine"}, "engines": 2}
ANY = ("is_paused", "version", "pause", "flush", "start", "update", "finish", "metrics", "idle")


def dead(engine: int) -> list[Strike]:
    """Return what makes an engine answer nothing any more, as a dead process does."""
    return [
        Strike(action=action, kind="request_lost", engine=engine, always=True) for action in ANY
    ]


def state(world: World) -> list[tuple[str, str, bool]]:
    """Return label, weights and pause state of each engine."""
    return list(zip(world.labels, world.weights, world.paused, strict=True))


@pytest.mark.parametrize("transport", ["ipc", "nccl"])
def test_dies_between_pushes(make_world: MakeWorld, transport: str) -> None:
    """A dead engine is left out of a push from its beginning, and of the next one too."""
    world = make_world(transport=transport, **ASIDE).connected()
    world.wire.strikes.extend(dead(1))
    for version in (1, 2):
        report, peers = world.pushed()
        assert (report.degraded, peers.degraded) == (True, True)
        assert len(report.attempts) == 1
        assert [(e.bytes, e.quarantined) for e in report.engines] == [
            (Bytes.COMMITTED, False),
            (Bytes.UNCHANGED, True),
        ]
        assert state(world)[0] == (str(version), f"target {version}", False)
        assert state(world)[1] == ("default", "start", False)
    assert world.versions == [2, 2]


def test_comes_back(make_world: MakeWorld) -> None:
    """An engine that answers again joins a new channel and gets the whole model."""
    world = make_world(**ASIDE).connected()
    world.wire.strikes.extend(dead(1))
    world.pushed()
    world.heal()
    report, _ = world.pushed()
    assert not report.degraded
    assert state(world) == [("2", "target 2", False)] * 2
    assert world.wire.actions(1).count("init") == 2


def test_dies_in_a_push(make_world: MakeWorld) -> None:
    """An engine that dies in an attempt is left out of the resend."""
    world = make_world(**ASIDE).connected()
    lost = Strike(action="update", kind="request_lost", engine=1)
    pause = Strike(action="pause", kind="request_lost", engine=1, nth=2)
    world.wire.strikes.extend([lost, pause])
    report, _ = world.pushed()
    assert report.degraded
    assert [len(attempt.causes) > 0 for attempt in report.attempts] == [True, False]
    assert [engine.quarantined for engine in report.engines] == [False, True]
    assert report.engines[1].bytes is Bytes.DIRTY
    assert state(world)[0] == ("1", "target 1", False)
    assert world.paused[1]


def test_stuck(make_world: MakeWorld) -> None:
    """A stuck engine is asked for nothing but its metrics until it was restarted."""
    limits = dataclasses.replace(QUICK, request_s=0.2)
    world = make_world(timeouts=limits, **ASIDE).connected()
    world.wire.strikes.append(Strike(action="update", kind="hang", engine=1))
    world.wire.strikes.append(Strike(action="metrics", kind="hang", engine=1, always=True))
    report, _ = world.pushed()
    assert (report.degraded, report.engines[1].bytes) == (True, Bytes.STUCK)
    asked = len(world.wire.actions(1))
    world.pushed()
    assert set(world.wire.actions(1)[asked:]) <= {"metrics"}


def test_nobody_left(make_world: MakeWorld) -> None:
    """Without an engine to go on with the push raises, as it would anyway."""
    world = make_world(options={"on_stuck": "quarantine"}).connected()
    world.wire.strikes.extend(dead(0))
    outcomes = world.push()
    assert all(isinstance(outcome, PushFailed) for outcome in outcomes)
    assert world.versions == [0, 0]


def test_refused_is_not_dead(make_world: MakeWorld) -> None:
    """An engine that answers no, or late, keeps its place: the push raises."""
    world = make_world(**ASIDE).connected()
    world.wire.strikes.append(Strike(action="flush", kind="reject", engine=1))
    outcomes = world.push()
    assert all(isinstance(outcome, PushFailed) for outcome in outcomes)
    assert world.paused == [False, False]
    report, _ = world.pushed()
    assert not report.degraded


def test_policies(make_world: MakeWorld) -> None:
    """A policy that does not exist, or that several senders could not follow, is refused."""
    with pytest.raises(ValueError, match="on_stuck: expected one of raise, quarantine, found 'x'"):
        WeightUpdater(
            open_channel=lambda client, source: None,  # type: ignore[arg-type] # never called
            source=[],  # type: ignore[arg-type] # never iterated
            transport="ipc",
            on_stuck="x",
        )
    world = make_world(**ASIDE)
    errors = world.run(lambda rank: world.updaters[rank].connect(world.urls, [0, 1]))
    assert [type(error) for error in errors] == [ValueError, ValueError]
    assert "found quarantine with owners [0, 1]" in str(errors[0])


@pytest.mark.parametrize("transport", ["ipc", "nccl"])
def test_back_in_a_push_that_fails(make_world: MakeWorld, transport: str) -> None:
    """An engine that came back in a push that failed still joins a channel before the next."""
    world = make_world(transport=transport, **ASIDE).connected()
    world.wire.strikes.extend(dead(1))
    world.pushed()
    world.heal()
    world.fakes[1].restart()
    refuse = Strike(action="flush", kind="reject", engine=0, always=True)
    world.wire.strikes.append(refuse)
    assert all(isinstance(outcome, PushFailed) for outcome in world.push())
    world.heal()
    asked = len(world.wire.actions(1))
    report, _ = world.pushed()
    assert (report.degraded, len(report.attempts)) == (False, 1)
    after = world.wire.actions(1)[asked:]
    assert after.index("init") < after.index("update")


def test_one_lost_connection(make_world: MakeWorld) -> None:
    """An engine that is lost once and answers then is no dead one."""
    world = make_world(**ASIDE).connected()
    world.wire.strikes.append(Strike(action="is_paused", kind="request_lost", engine=1))
    report, _ = world.pushed()
    assert not report.degraded
    assert state(world) == [("1", "target 1", False)] * 2


def test_reported_bytes(make_world: MakeWorld) -> None:
    """What an engine took from earlier pushes is not reported of one that left it out."""
    world = make_world(**ASIDE).connected()
    world.pushed()
    world.wire.strikes.extend(dead(1))
    report, _ = world.pushed()
    assert [engine.bytes for engine in report.engines] == [Bytes.COMMITTED, Bytes.UNCHANGED]
