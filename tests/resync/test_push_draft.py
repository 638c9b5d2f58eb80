"""A push with a draft model: one attempt for both, and flags that never stay set."""

from __future__ import annotations

import pytest
from fake_vllm import Strike
from push_world import MakeWorld, World
from trainer_doubles import TENSOR_BYTES

from resync import Bytes, PushFailed, WeightUpdater

BOTH_BYTES = 2 * 3 * TENSOR_BYTES
DRAFT = {"draft": True}

# fmt: off
FAULTS = [
    # action         kind          what the first attempt has sent
    ("start",       "reject",     []),
    ("start_draft", "reject",     ["target 1"]),
    ("start_draft", "reply_lost", ["target 1"]),
    ("update",      "raise",      ["target 1", "draft 1"]),
    ("finish",      "raise",      ["target 1", "draft 1"]),
    ("finish",      "reply_lost", ["target 1", "draft 1"]),
]
# fmt: on


def strike(action: str, kind: str, *, always: bool = False) -> Strike:
    """Strike the draft's own session, where there is one."""
    draft = True if action in ("update", "finish") else None
    return Strike(action=action, kind=kind, draft=draft, always=always)


def flags(world: World) -> set[bool]:
    """Every flag that selects the draft model, on every rank."""
    clients = [updater._client for updater in world.updaters]
    return {client.draft for client in clients if client} | {s.draft for s in world.sources}


@pytest.mark.parametrize("rules", ["vllm-0.32", "vllm-next"])
@pytest.mark.parametrize("transport", ["ipc", "nccl"])
@pytest.mark.parametrize(("action", "kind", "sent"), FAULTS)
def test_one_failure(
    make_world: MakeWorld, action: str, kind: str, sent: list[str], transport: str, rules: str
) -> None:
    """A failure in either session resends both models, and both are whole afterwards."""
    world = make_world(
        transport=transport, rules=rules, options=DRAFT, strikes=[strike(action, kind)]
    ).connected()
    reports = world.pushed()
    assert [source.passes for source in world.sources] == [[*sent, "target 1", "draft 1"]] * 2
    assert reports[0].num_bytes == BOTH_BYTES
    assert [world.fakes[0].models[draft].weights for draft in (False, True)] == [
        "target 1",
        "draft 1",
    ]
    assert (world.labels, world.paused, world.versions) == (["1"], [False], [1, 1])
    assert flags(world) == {False}


@pytest.mark.parametrize("transport", ["ipc", "nccl"])
@pytest.mark.parametrize("action", ["start_draft", "update", "finish"])
def test_every_attempt_fails(make_world: MakeWorld, action: str, transport: str) -> None:
    """A draft session that always fails publishes nothing; the next push sends both."""
    world = make_world(
        transport=transport, options=DRAFT, strikes=[strike(action, "raise", always=True)]
    ).connected()
    errors = world.push()
    assert all(isinstance(error, PushFailed) for error in errors)
    assert errors[0].report.engines[0].bytes is Bytes.DIRTY
    assert (world.labels, world.paused, world.versions) == (["default"], [True], [0, 0])
    assert flags(world) == {False}
    world.heal()
    world.pushed()
    assert [model.weights for model in world.fakes[0].models.values()] == ["target 2", "draft 2"]


def test_no_trainer_left(make_world: MakeWorld) -> None:
    """Reconnecting fails, so there is no trainer: the original error surfaces, flags are clear."""
    world = make_world(options=DRAFT, strikes=[strike("update", "raise")]).connected()

    def fail(rank: int, nth: int) -> None:
        raise OSError("port taken")

    world.on_open = fail
    errors = world.push()
    assert [str(error) for error in errors] == [
        "push of version 1 failed (sending, 2 attempts): rank 0, step transfer, engine 0: "
        "EngineRejected: engine 0: update: expected HTTP 200, found 500: injected | "
        "rank 0, step reconnect: ChannelError: the trainer's end of the channel: "
        "OSError: port taken | "
        "rank 1, step reconnect: ChannelError: the trainer's end of the channel: "
        "OSError: port taken"
    ] * 2
    assert [updater._channel and updater._channel.trainer for updater in world.updaters] == [
        None
    ] * 2
    assert flags(world) == {False}
    assert [cause.engine for cause in errors[0].report.attempts[0].causes] == [0]
    world.on_open = lambda rank, nth: None
    assert len(world.pushed()[0].attempts) == 1
    assert [model.weights for model in world.fakes[0].models.values()] == ["target 2", "draft 2"]


def test_source_without_the_flag() -> None:
    """A draft push of a source that cannot select the draft model is refused at once."""

    class Plain:
        def metadata(self) -> list[str]:
            return []

        def __iter__(self) -> object:
            return iter(())

    with pytest.raises(ValueError, match="source: expected") as refused:
        WeightUpdater(open_channel=None, source=Plain(), transport="ipc", draft=True)  # type: ignore[arg-type]
    assert str(refused.value) == (
        "source: expected a weight source with a `draft` flag, as the push carries a draft model "
        "too, found none on Plain: both sessions would get the target's weights."
    )
