"""The client that a trainer engine is given: latching, raising, offsets, and its payloads."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from fake_vllm import FakeEngine, FakeTransport, Strike
from httpx_wire import HttpxWire

from resync import Bytes, Channel, Fleet, FleetError, PushTimeouts, ResumableWeightSource
from resync import WeightSyncClient as Client
from resync.client import json_safe
from resync.policy import IPC, NCCL, TransportPolicy, policy_for

TIMEOUTS = PushTimeouts(init_s=5, request_s=5, settle_s=0.05)
INFO = {"names": ["q", "k", "v"], "content": "target 1"}
REFUSED = "engine 1: update: expected HTTP 200, found 500: refused by the front end"


@pytest.fixture
def wire() -> FakeTransport:
    """Two engines, joined, paused, each in an open session, with 2 and 1 workers."""
    engines = [
        FakeEngine(index, workers=workers, paused=True, active=True, joined=True)
        for index, workers in enumerate((2, 1))
    ]
    return FakeTransport(engines)


@pytest.fixture
def fleet(wire: FakeTransport) -> Iterator[Fleet]:
    """The fleet of both."""
    fleet = Fleet(dict(enumerate(wire.urls)), TIMEOUTS, wire=HttpxWire(wire))
    fleet.each(lambda engine: engine.world_size())
    fleet.engines[0].replies.backlog = (0, 0)
    wire.log.clear()
    yield fleet
    fleet.close()


def test_latch(wire: FakeTransport, fleet: Fleet) -> None:
    """IPC: the first failure is kept, the rest of the session is skipped, the next one is not."""
    client = Client(fleet, IPC)
    wire.strikes.append(Strike(action="update", kind="reject", engine=1))
    client.update_weights(INFO)
    first = client.failure
    assert str(first) == REFUSED
    client.update_weights(INFO)
    client.finish_weight_update()
    assert client.failure is first
    assert wire.actions(0) == wire.actions(1) == ["update"]
    client.begin_session()
    client.update_weights(INFO)
    client.finish_weight_update()
    assert client.failure is None
    assert wire.actions(1) == ["update", "update", "finish"]


def test_latch_keeps_a_failed_finish(wire: FakeTransport, fleet: Fleet) -> None:
    """IPC: a finish that fails is kept as well."""
    client = Client(fleet, IPC)
    wire.strikes.append(Strike(action="finish", kind="reject"))
    client.finish_weight_update()
    assert str(client.failure) == (
        "engine 0: finish: expected HTTP 200, found 500: refused by the front end"
    )


def test_latch_keeps_a_payload_that_is_not_json(wire: FakeTransport, fleet: Fleet) -> None:
    """IPC: a failure that is no engine's must not leave the others in a barrier either."""
    client = Client(fleet, IPC)
    client.update_weights({"names": {1, 2}})
    assert isinstance(client.failure, TypeError)
    assert wire.log == []


def test_nccl_raises(wire: FakeTransport, fleet: Fleet) -> None:
    """NCCL: a failed request raises, after the hook has heard of it."""
    client = Client(fleet, NCCL)
    heard: list[Exception] = []
    client.on_update_failed = heard.append
    wire.strikes.append(Strike(action="update", kind="reject", engine=1))
    with pytest.raises(FleetError) as raised:
        client.update_weights(INFO)
    assert str(raised.value) == REFUSED
    assert heard == [raised.value] == [client.failure]
    client.begin_session()
    wire.strikes.append(Strike(action="finish", kind="reject"))
    with pytest.raises(FleetError):
        client.finish_weight_update()
    assert len(heard) == 1


@pytest.mark.parametrize("policy", [IPC, NCCL], ids=["ipc", "nccl"])
def test_start_and_finish(wire: FakeTransport, fleet: Fleet, policy: TransportPolicy) -> None:
    """Start is the push's own step; a finish carries no version, even if it is given one."""
    client = Client(fleet, policy)
    client.start_weight_update()
    assert wire.log == []
    client.finish_weight_update("7")
    assert [(request.action, request.body) for request in wire.log] == [("finish", {})] * 2
    assert [engine.label for engine in wire.engines] == ["default"] * 2


# fmt: off
OFFSETS = [
    # init info                                what each engine gets
    ({"rank_offset": 1, "master_port": 5},     [{"rank_offset": 1, "master_port": 5},
                                                {"rank_offset": 3, "master_port": 5}]),
    ({"packed": True},                         [{"packed": True}, {"packed": True}]),
]
# fmt: on


@pytest.mark.parametrize(("init_info", "given"), OFFSETS)
def test_rank_offsets(
    wire: FakeTransport, fleet: Fleet, init_info: dict[str, Any], given: list[dict[str, Any]]
) -> None:
    """Engines follow each other in the group by their numbers of workers."""
    Client(fleet, NCCL).init_weight_transfer_engine(init_info)
    bodies = {request.engine: request.body["init_info"] for request in wire.log}
    assert [bodies[0], bodies[1]] == given


def test_failed_init_reaches_the_opening_that_it_belongs_to(
    wire: FakeTransport, fleet: Fleet
) -> None:
    """A thread left behind by an earlier opening does not fail the present one."""
    client = Client(fleet, NCCL)
    early: list[Exception] = []
    late: list[Exception] = []
    client.on_init_failed = early.append

    def switch(step: str, /, **details: Any) -> None:
        client.on_init_failed = late.append

    for engine in fleet.engines:
        engine.line.observe = switch
    wire.strikes.append(Strike(action="init", kind="reject"))
    with pytest.raises(FleetError):
        client.init_weight_transfer_engine({})
    assert (len(early), late) == (1, [])


CUDA_HANDLE = (0, b"\x01", "rebuild")

# fmt: off
PAYLOADS = [
    # id            handles                                   pickled?
    ("dict",        {"GPU-0": CUDA_HANDLE},                   True),
    ("list",        [{"GPU-0": CUDA_HANDLE}, {"GPU-1": CUDA_HANDLE}], True),
    ("json",        [{"GPU-0": {"path": "/dev/shm/x"}}],      False),
    ("json-dict",   {"GPU-0": ["a", 1]},                      False),
    ("empty-list",  [],                                       False),
    ("empty-dict",  {},                                       False),
    ("none",        None,                                     False),
]
# fmt: on


@pytest.mark.parametrize(
    ("handles", "pickled"), [case[1:] for case in PAYLOADS], ids=[case[0] for case in PAYLOADS]
)
def test_json_safe(handles: Any, pickled: bool) -> None:
    """CUDA handles travel as vLLM takes them; what is JSON already travels as it is."""
    info = {"names": ["q"], "ipc_handles": handles}
    safe = json_safe(info)
    if not pickled:
        assert safe is info
        return
    data = base64.b64decode(safe.pop("ipc_handles_pickled"))
    assert pickle.loads(data) == handles
    assert safe == {"names": ["q"]}
    assert json_safe([info, {"names": []}])[1] == {"names": []}


class Communicator:
    """vLLM's: after ``destroy()`` broadcasts do nothing."""

    def __init__(self, *, breaks: bool) -> None:
        self.destroyed = 0
        self.breaks = breaks
        self.sent: list[str] = []

    def broadcast(self, name: str) -> None:
        if not self.destroyed:
            self.sent.append(name)

    def destroy(self) -> None:
        self.destroyed += 1
        if self.breaks:
            raise OSError("broken")


class Trainer:
    """A trainer engine with a communicator."""

    def __init__(self, *, breaks: bool) -> None:
        self.model_update_group = Communicator(breaks=breaks)

    def send_weights(self) -> None: ...

    def shutdown(self) -> None: ...


@pytest.mark.parametrize("breaks", [False, True])
def test_failed_update_drops_the_own_end(wire: FakeTransport, fleet: Fleet, breaks: bool) -> None:
    """The sender's communicator is destroyed once, and the update's own error is what raises."""
    client = Client(fleet, NCCL)
    trainer = Trainer(breaks=breaks)
    channel = Channel(lambda c, s: trainer, client, ResumableWeightSource([]), TIMEOUTS)  # type: ignore[arg-type]
    channel.open()
    assert not channel.needs_rebuild
    trainer.model_update_group.broadcast("q")
    wire.strikes.append(Strike(action="update", kind="raise", engine=1))
    with pytest.raises(FleetError):
        client.update_weights(INFO)
    client_calls_left = client.failure is not None
    trainer.model_update_group.broadcast("k")
    assert (trainer.model_update_group.destroyed, trainer.model_update_group.sent) == (1, ["q"])
    assert client_calls_left
    assert channel.needs_rebuild
    assert [engine.bytes for engine in fleet.engines] == [Bytes.DIRTY] * 2


def test_policies() -> None:
    """An unknown transport is refused with the known ones."""
    assert (policy_for("ipc"), policy_for("nccl")) == (IPC, NCCL)
    with pytest.raises(ValueError, match="transport") as unknown:
        policy_for("rdma")
    assert str(unknown.value) == "transport: expected one of ipc, nccl, found 'rdma'."
