"""A rank that is lost: the others raise, and nothing is asked of an engine any more."""

from __future__ import annotations

import pytest
from push_world import MakeWorld

from resync import PeerLost, SourceFailed, UpdaterUnusable

# fmt: off
STEPS = [
    # step       the last request before its agreement
    ("quiesce",  "flush"),
    ("start",    "start"),
    ("transfer", "version"),
    ("commit",   "version"),
    ("resume",   "is_paused"),
]
# fmt: on


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize(("step", "last"), STEPS)
def test_lost_in_an_agreement(make_world: MakeWorld, step: str, last: str, lost: int) -> None:
    """An agreement that fails raises `PeerLost` and poisons the updater."""
    world = make_world(transport="nccl").connected()

    def strike(rank: int, heard: str, phase: str) -> None:
        if (rank, heard, phase) == (lost, f"agree.{step}", "begin"):
            raise ValueError("struck")

    world.on_observe = strike
    errors = world.push()
    assert [type(error) for error in errors] == [PeerLost, PeerLost]
    assert str(errors[lost]) == (
        f"agreement on step {step} failed: struck. A trainer rank has died, left or hung; no "
        "engine is touched any more. Restart the trainer."
    )
    assert world.wire.actions()[-1] == last
    num_requests = len(world.wire.log)
    assert [type(error) for error in world.push()] == [UpdaterUnusable] * 2
    world.run(lambda rank: world.updaters[rank].close())
    again = world.connect()
    assert [str(error) for error in again] == [
        f"this updater lost a peer and touches no engine: {error}" for error in errors
    ]
    assert len(world.wire.log) == num_requests


@pytest.mark.parametrize("transport", ["ipc", "nccl"])
def test_source_fails(make_world: MakeWorld, transport: str) -> None:
    """A gather that raises is not agreed on: the rank leaves, and the others raise after it."""
    world = make_world(ranks=3, transport=transport).connected()
    world.sources[1].fail_at = "k"
    errors = world.push()
    assert [type(error) for error in errors] == [SourceFailed] * 3
    assert str(errors[1]) == (
        "the weight source, in a pass of all ranks: RuntimeError('gather of k failed')"
    )
    reports = [error.report for error in errors if isinstance(error, SourceFailed)]
    assert [len(report.attempts) for report in reports if report is not None] == [1] * 3
    assert world.steps_heard[-1] == "start"
    assert world.paused == [True]
    assert world.labels == ["default"]
    assert [type(error) for error in world.push()] == [UpdaterUnusable] * 3


def test_lost_in_connect(make_world: MakeWorld) -> None:
    """A peer lost while connecting poisons the updater as well."""
    world = make_world()

    def strike(rank: int, heard: str, phase: str) -> None:
        if (rank, heard) == (1, "agree.look"):
            raise RuntimeError("struck")

    world.on_observe = strike
    assert [type(error) for error in world.connect()] == [PeerLost] * 2
    assert [type(error) for error in world.push()] == [UpdaterUnusable] * 2
    assert world.wire.actions() == ["world_size", "is_paused", "version"]
    assert world.channels == [[], []]
