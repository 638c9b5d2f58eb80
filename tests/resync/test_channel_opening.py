"""Opening the channel: under a deadline, never hanging, and never leaving a trainer behind."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from resync import (
    Channel,
    ChannelError,
    EngineRejected,
    FleetError,
    PushTimeouts,
    ResumableWeightSource,
    WeightSyncClient,
)
from resync.policy import NCCL

TIMEOUTS = PushTimeouts(init_s=0.1, request_s=1, settle_s=0.05)
REFUSAL = FleetError([EngineRejected(0, "init", 500, "no")])


class Trainer:
    """A trainer engine that counts its shutdowns, and may fail in them."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.shutdowns = 0
        self.breaks = breaks
        self.is_down = threading.Event()

    def send_weights(self) -> None: ...

    def shutdown(self) -> None:
        self.shutdowns += 1
        self.is_down.set()
        if self.breaks:
            raise OSError("broken")


Build = Callable[[WeightSyncClient], Any]


def channel_of(build: Build) -> Channel:
    """Return a channel whose trainer engines are made by ``build``."""
    client = WeightSyncClient(None, NCCL)
    source = ResumableWeightSource([])  # type: ignore[arg-type]
    return Channel(lambda c, s: build(c), client, source, TIMEOUTS)


@pytest.fixture
def rendezvous() -> Iterator[threading.Event]:
    """What a hanging trainer waits for; it is freed at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def raised(channel: Channel) -> Exception:
    """Open, which must fail and leave no trainer; return the error."""
    with pytest.raises((ChannelError, FleetError)) as error:
        channel.open()
    assert channel.trainer is None
    assert channel.needs_rebuild
    return error.value


def test_open_and_reopen() -> None:
    """Each opening builds a new engine and shuts the one before it down."""
    built: list[Trainer] = []

    def build(client: WeightSyncClient) -> Trainer:
        built.append(Trainer(breaks=True))  # a failing shutdown is logged, not raised
        return built[-1]

    channel = channel_of(build)
    assert channel.needs_rebuild
    channel.open()
    assert not channel.needs_rebuild
    channel.broken = True
    assert channel.needs_rebuild
    channel.open()
    assert not channel.needs_rebuild
    assert channel.trainer is built[1]
    channel.close()
    channel.close()
    assert channel.trainer is None
    assert [trainer.shutdowns for trainer in built] == [1, 1]


def test_failed_shutdown_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Closing never masks the error at hand."""
    channel = channel_of(lambda client: Trainer(breaks=True))
    channel.open()
    channel.close()
    assert [record.getMessage() for record in caplog.records] == [
        "shutting the trainer engine down failed; going on without it"
    ]


def test_deadline(rendezvous: threading.Event) -> None:
    """A rendezvous that hangs ends at the deadline, and the error says that a thread is left."""
    late = Trainer()

    def build(client: WeightSyncClient) -> Trainer:
        rendezvous.wait(5)
        return late

    assert str(raised(channel_of(build))) == (
        "expected the trainer's end of the channel within 0.11 s, found its thread still waiting "
        "in the rendezvous. The thread cannot be freed; it is left behind. Check that every engine "
        "can reach the trainer's address and port"
    )
    rendezvous.set()
    assert late.is_down.wait(5)  # an engine that comes up late is shut down
    assert late.shutdowns == 1


def test_trainer_raises() -> None:
    """The trainer's own failure is raised, with its class and text, at once."""

    def build(client: WeightSyncClient) -> Trainer:
        raise OSError("port taken")

    error = raised(channel_of(build))
    assert str(error) == "the trainer's end of the channel: OSError: port taken"
    assert isinstance(error.__cause__, OSError)


def test_failed_reopening_leaves_no_trainer() -> None:
    """After a failed reopening there is no trainer, and the old one is down."""
    old = Trainer()
    answers: list[Any] = [old, OSError("port taken")]

    def build(client: WeightSyncClient) -> Trainer:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Trainer)
        return answer

    channel = channel_of(build)
    channel.open()
    raised(channel)
    assert old.shutdowns == 1


def test_refusal_that_the_trainer_raises() -> None:
    """A refused init that the trainer engine raises in the end is raised once, as it is."""

    def build(client: WeightSyncClient) -> Trainer:
        client.on_init_failed(REFUSAL)
        raise REFUSAL

    assert raised(channel_of(build)) is REFUSAL


def test_refusal_and_an_error_of_the_trainer() -> None:
    """A trainer's side that failed by itself, and made the init fail in its wake, names both."""

    def build(client: WeightSyncClient) -> Trainer:
        client.on_init_failed(REFUSAL)
        raise OSError("port taken")

    assert str(raised(channel_of(build))) == (
        "the trainer's end of the channel: OSError: port taken; and then: "
        "engine 0: init: expected HTTP 200, found 500: no"
    )


def test_refusal_while_the_rendezvous_hangs(
    rendezvous: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused init is raised although the trainer's side waits on, which the log says."""
    caplog.set_level(logging.WARNING, logger="resync")
    late = Trainer()

    def build(client: WeightSyncClient) -> Trainer:
        client.on_init_failed(REFUSAL)
        rendezvous.wait(5)
        return late

    assert raised(channel_of(build)) is REFUSAL
    assert [record.getMessage() for record in caplog.records] == [
        "an engine refused to join, and the trainer's end of the channel is still in its "
        "rendezvous after 0.05 s: its thread cannot be freed and is left behind"
    ]
    rendezvous.set()
    assert late.is_down.wait(5)
    assert late.shutdowns == 1


@pytest.mark.parametrize("breaks", [False, True])
def test_refusal_and_an_open_trainer(breaks: bool) -> None:
    """A trainer that came up although an engine refused is shut down once; the refusal counts."""
    trainer = Trainer(breaks=breaks)

    def build(client: WeightSyncClient) -> Trainer:
        client.on_init_failed(REFUSAL)
        return trainer

    assert raised(channel_of(build)) is REFUSAL
    assert trainer.shutdowns == 1


def test_late_refusal_of_an_earlier_opening(rendezvous: threading.Event) -> None:
    """What a thread left behind hears later does not touch the channel that is open by then."""
    hooks: list[Callable[[Exception], None]] = []

    def build(client: WeightSyncClient) -> Trainer:
        hooks.append(client.on_init_failed)
        if len(hooks) == 1:
            rendezvous.wait(5)
        return Trainer()

    channel = channel_of(build)
    raised(channel)
    channel.open()
    hooks[0](REFUSAL)
    assert not channel.needs_rebuild
