"""Connecting: agreed on, once more on a fresh channel, and nothing touched where it cannot be."""

from __future__ import annotations

import pytest
from fake_vllm import Strike
from push_world import MakeWorld

from resync import ConnectFailed, PushFailed, UpdaterUnusable


@pytest.mark.parametrize("transport", ["ipc", "nccl"])
@pytest.mark.parametrize("kind", ["reject", "raise", "request_lost"])
def test_init_fails_once(make_world: MakeWorld, kind: str, transport: str) -> None:
    """One failed init: every rank builds a second channel, once the engine has come to rest."""
    world = make_world(
        engines=2, transport=transport, strikes=[Strike(action="init", kind=kind, engine=1)]
    )
    assert world.connect() == [2, 2]
    waits = ["metrics", "version", "metrics"] if kind == "request_lost" else []
    assert world.wire.actions(1) == ["world_size", "is_paused", "version", "init", *waits, "init"]
    world.pushed()


def test_one_rank_fails_once(make_world: MakeWorld) -> None:
    """A channel that came up on some ranks only is dropped on all of them."""

    def fail(rank: int, nth: int) -> None:
        if (rank, nth) == (1, 0):
            raise OSError("port taken")

    world = make_world(on_open=fail)
    assert world.connect() == [2, 2]
    assert [double.closes for double in world.channels[0]] == [1, 0]


def test_init_always_fails(make_world: MakeWorld) -> None:
    """Two failures: the same error on every rank, generation untouched, a later connect works."""
    world = make_world(strikes=[Strike(action="init", kind="reject", always=True)])
    errors = world.connect()
    assert [type(error) for error in errors] == [ConnectFailed] * 2
    assert [str(error) for error in errors] == [
        "connecting to 1 engines failed after 2 channels: rank 0, step connect, engine 0: "
        "EngineRejected: engine 0: init: expected HTTP 200, found 500: refused by the front end"
    ] * 2
    assert errors[0].causes == errors[1].causes
    assert world.wire.actions() == ["world_size", "is_paused", "version", "init", "init"]
    world.heal()
    assert world.run(lambda rank: world.updaters[rank].reconnect(world.urls)) == [1, 1]
    world.pushed()


def test_engine_that_does_not_answer(make_world: MakeWorld) -> None:
    """An engine that cannot be looked at costs no channel."""
    world = make_world(strikes=[Strike(action="world_size", kind="request_lost")])
    assert [str(error) for error in world.connect()] == [
        "connecting to 1 engines failed after 0 channels: rank 0, step look, engine 0: "
        "EngineLost: engine 0: world_size: no answer from http://engine-0: connection refused"
    ] * 2
    assert world.channels == [[], []]


def test_different_lists(make_world: MakeWorld) -> None:
    """Ranks with different engines refuse on all ranks; no engine is touched."""
    world = make_world(engines=2)
    errors = world.run(lambda rank: world.updaters[rank].connect(world.urls[rank:]))
    assert [str(error) for error in errors] == [
        "expected the same engines on every trainer rank, found different lists; this rank has "
        f"{world.urls[rank:]}, sent to by ranks {[0] * (2 - rank)}. Take one snapshot of the "
        "engines and give it to all ranks. No "
        "engine was touched."
        for rank in (0, 1)
    ]
    assert world.wire.log == []


@pytest.mark.parametrize("rules", ["vllm-0.32", "vllm-next"])
@pytest.mark.parametrize("draft", [False, True])
def test_left_in_the_middle(make_world: MakeWorld, draft: bool, rules: str) -> None:
    """A paused engine that an earlier trainer left mid-session is closed by the first push."""
    world = make_world(rules=rules, options={"draft": draft})
    engine = world.fakes[0]
    engine.paused, engine.active, engine.session_is_draft = True, True, draft
    engine.layers.armed, engine.layers.loaded = True, ["q"]
    world.connected()
    assert len(world.pushed()[0].attempts) == 1
    expected = {False: "target 1", True: "draft 1" if draft else "start"}
    assert {flag: model.weights for flag, model in engine.models.items()} == expected


def test_most_requests_before_an_agreement(make_world: MakeWorld) -> None:
    """The step that asks an engine most is opening an unknown session, with a draft and a label."""
    world = make_world(options={"draft": True, "mark_dirty": True})
    world.fakes[0].paused = True
    world.connected()
    world.pushed()
    asked = ["is_paused", "start", "finish", "start_draft", "finish", "publish", "start"]
    assert world.most_requests == len(asked)
    begun = world.wire.actions().index("flush") + 1
    assert world.wire.actions()[begun : begun + len(asked)] == asked


def test_left_in_the_middle_and_running(make_world: MakeWorld) -> None:
    """An idle engine that was left mid-session and runs: its start is refused, the resend works."""
    world = make_world()
    world.fakes[0].active = True
    world.connected()
    assert len(world.pushed()[0].attempts) == 2
    assert world.weights == ["target 1"]


def test_order_of_calls(make_world: MakeWorld) -> None:
    """A push needs a connection, a second connect needs a close, and a second close is nothing."""
    world = make_world(ranks=1)
    updater = world.updaters[0]
    with pytest.raises(UpdaterUnusable) as unusable:
        updater.push()
    assert str(unusable.value) == "expected a connected updater; call connect() first."
    world.connected()
    with pytest.raises(UpdaterUnusable) as unusable:
        updater.connect(world.urls)
    assert str(unusable.value) == ("expected an updater that is not connected; call close() first.")
    num_requests = len(world.wire.log)
    updater.close()
    updater.close()
    assert len(world.wire.log) == num_requests
    with pytest.raises(UpdaterUnusable):
        updater.push()


def test_limits_of_a_push(make_world: MakeWorld) -> None:
    """Every request of a push that fails everywhere it can carries its own limit."""
    world = make_world(
        engines=2,
        strikes=[
            Strike(action="init", kind="reject"),
            Strike(action="start", kind="raise"),
            Strike(action="update", kind="raise", engine=1),
            Strike(action="resume", kind="reject", always=True),
        ],
    )
    assert world.connect() == [2, 2]
    assert all(isinstance(error, PushFailed) for error in world.push())
    heard = [(engine, action) for engine, action, _ in world.limits]
    arrived = [(request.engine, request.action) for request in world.wire.log]
    assert sorted(heard) == sorted(arrived)
    limits = {"init": world.timeouts.init_s}
    assert {limit_s for _, action, limit_s in world.limits if action != "init"} == {5.0}
    assert all(limit_s == limits.get(action, 5.0) for _, action, limit_s in world.limits)
