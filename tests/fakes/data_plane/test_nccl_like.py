"""The communicator behaves as NCCL does where gloo would be kinder."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from fakes.data_plane.nccl_like import NcclLikeCommunicator
from fakes.send_loops.nccl import free_port
from tests.fakes.data_plane.forked import run_forked

STILL_S = 0.2  # gloo's own peers raise within 15 ms of a loss; nothing may happen in this time

FORK = multiprocessing.get_context("fork")


def join(port: int, rank: int, world_size: int, **options: Any) -> NcclLikeCommunicator:
    return NcclLikeCommunicator(
        master_address="127.0.0.1",
        master_port=port,
        rank=rank,
        world_size=world_size,
        **{"rendezvous_s": 5.0, **options},
    )


def waiter(group: NcclLikeCommunicator) -> threading.Thread:
    """Start a thread that synchronizes."""
    thread = threading.Thread(target=group.synchronize, daemon=True)
    thread.start()
    return thread


def test_broadcast_reaches_every_receiver() -> None:
    """Every receiver gets every tensor's bytes, in the order of the broadcasts."""
    port = free_port()

    def rank(index: int) -> list[float]:
        group = join(port, index, 5)
        tensors = [torch.full((1000,), float(i) if index == 0 else -1.0) for i in range(10)]
        for tensor in tensors:
            group.broadcast(tensor, src=0)
        group.synchronize()
        return [float(tensor.mean()) for tensor in tensors]

    results = run_forked([lambda index=index: rank(index) for index in range(5)])
    assert results == [[float(i) for i in range(10)]] * 5


def test_broadcast_only_enqueues() -> None:
    """A broadcast returns before anyone receives; synchronize on it returns after that."""
    port, enqueued = free_port(), FORK.Event()

    def sender() -> list[bool]:
        group = join(port, 0, 2)
        first = group.broadcast(torch.ones(8), src=0)
        group.broadcast(torch.ones(8), src=0)
        thread = waiter(group)
        thread.join(STILL_S)
        was_blocked = thread.is_alive()
        enqueued.set()
        group.synchronize(first)
        thread.join(5)
        return [was_blocked, thread.is_alive()]

    def receiver() -> float:
        group = join(port, 1, 2)
        assert enqueued.wait(5)
        tensors = [torch.zeros(8), torch.zeros(8)]
        for tensor in tensors:
            group.broadcast(tensor, src=0)
        group.synchronize()
        return float(sum(tensor.sum() for tensor in tensors))

    assert run_forked([sender, receiver]) == [[True, False], 16.0]


def test_loss_of_the_sender_goes_unnoticed() -> None:
    """A receiver waits on when the sender dies, until it aborts its own side."""
    port = free_port()
    gone_reader, gone_writer = os.pipe()

    def sender() -> str:
        if os.fork() == 0:
            join(port, 0, 2)
            os._exit(0)
        os.wait()
        os.write(gone_writer, b"x")
        return "died"

    def receiver() -> list[Any]:
        group = join(port, 1, 2)
        group.broadcast(torch.zeros(8), src=0)
        thread = waiter(group)
        os.read(gone_reader, 1)
        thread.join(STILL_S)
        deaf = thread.is_alive()
        pending = sorted(wait["op"] for wait in group.pending())
        group.destroy()
        thread.join(5)
        return [deaf, pending, thread.is_alive(), group.pending()]

    assert run_forked([sender, receiver]) == [
        "died",
        [True, ["broadcast", "synchronize"], False, []],
    ]


def test_loss_of_a_receiver_goes_unnoticed() -> None:
    """The sender waits on when a receiver dies, and gets no error from what it enqueues then."""
    port = free_port()
    gone_reader, gone_writer = os.pipe()

    def sender() -> list[bool]:
        group = join(port, 0, 2)
        os.read(gone_reader, 1)
        group.broadcast(torch.zeros(8), src=0)
        group.broadcast(torch.zeros(8), src=0)
        thread = waiter(group)
        thread.join(STILL_S)
        deaf = thread.is_alive()
        group.destroy()
        thread.join(5)
        return [deaf, thread.is_alive()]

    def receiver() -> str:
        if os.fork() == 0:
            join(port, 1, 2)
            os._exit(0)
        os.wait()
        os.write(gone_writer, b"x")
        return "died"

    assert run_forked([sender, receiver]) == [[True, False], "died"]


def test_abort_frees_the_local_side_alone() -> None:
    """After the sender aborts, its own waiter is free, a receiver of the same group is not."""
    port, aborted = free_port(), FORK.Event()

    def sender() -> list[Any]:
        group = join(port, 0, 3)
        group.broadcast(torch.zeros(8), src=0)  # rank 2 never receives
        thread = waiter(group)
        began = time.monotonic()
        group.destroy()
        thread.join(5)
        took_s = time.monotonic() - began
        aborted.set()
        return [thread.is_alive(), took_s < 1.0]

    def receiver() -> bool:
        group = join(port, 1, 3)
        assert aborted.wait(5)
        group.broadcast(torch.zeros(8), src=0)
        group.broadcast(torch.zeros(8), src=0)
        thread = waiter(group)
        thread.join(STILL_S)
        return thread.is_alive()

    def bystander() -> None:
        join(port, 2, 3)

    assert run_forked([sender, receiver, bystander]) == [[False, True], True, None]


def test_destroyed_is_a_silent_no_op() -> None:
    """After destroy a broadcast touches nothing, and synchronize returns."""
    port = free_port()

    def rank(index: int) -> list[Any]:
        group = join(port, index, 2)
        group.destroy()
        group.destroy()
        tensor = torch.full((4,), 7.0)
        group.broadcast(tensor, src=0)
        group.synchronize()
        return [group.disabled, group.available, float(tensor.sum()), group.pending()]

    expected = [True, False, 28.0, []]
    assert run_forked([lambda: rank(0), lambda: rank(1)]) == [expected] * 2


def test_group_of_one_is_disabled() -> None:
    """A group without workers opens nothing, as in vLLM."""
    group = join(1, 0, 1)
    group.broadcast(torch.zeros(4), src=0)
    group.synchronize()
    assert group.disabled


def test_events_show_who_waits_where() -> None:
    """Each broadcast and each wait is recorded as it begins and ends, with its bytes and role."""
    port = free_port()

    def rank(index: int) -> list[list[Any]]:
        events: list[list[Any]] = []

        def record(event: str, /, **fields: Any) -> None:
            events.append(
                [event, *(fields[key] for key in ("op", "phase", "seq", "bytes", "role"))]
            )

        group = join(port, index, 2, record=record)
        for _ in range(2):
            group.broadcast(torch.zeros(4), src=0)
        group.synchronize()
        return [event for event in events if event[1] == "broadcast"]

    def expected(role: str) -> list[list[Any]]:
        return [
            ["data_plane", "broadcast", phase, seq, 16, role]
            for seq in (1, 2)
            for phase in ("begin", "end")
        ]

    results = run_forked([lambda: rank(0), lambda: rank(1)])
    assert results == [expected("sender"), expected("receiver")]


def _error(make: Callable[[], object]) -> str:
    try:
        make()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "joined"


def test_rank_that_never_comes() -> None:
    """The sender gives up at its deadline; a receiver that had come is told at once."""
    port = free_port()

    def sender() -> str:
        return _error(lambda: join(port, 0, 3, rendezvous_s=0.2))

    def receiver() -> str:
        began = time.monotonic()
        error = _error(lambda: join(port, 1, 3, rendezvous_s=20.0))
        assert time.monotonic() - began < 5
        return error

    assert run_forked([sender, receiver]) == [
        "DistStoreError: wait timeout after 200ms, keys: /0/2",
        "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. "
        "Did the remote server shutdown or crash?",
    ]


def test_sender_cannot_bind() -> None:
    """A taken port fails the sender with EADDRINUSE; the receiver waits for its deadline."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        sender, receiver = run_forked(
            [
                lambda: _error(lambda: join(port, 0, 2)),
                lambda: _error(lambda: join(port, 1, 2, rendezvous_s=0.2)),
            ]
        )
    assert sender == "OSError: [Errno 98] Address already in use"
    assert receiver == "DistStoreError: wait timeout after 200ms, keys: /0/1"


def test_port_is_free_after_destroy() -> None:
    """The sender's port can be bound again once its communicator was destroyed."""
    port, freed = free_port(), FORK.Event()

    def sender() -> None:
        join(port, 0, 2).destroy()
        freed.set()
        join(port, 0, 2)

    def receiver() -> None:
        join(port, 1, 2)
        assert freed.wait(5)
        join(port, 1, 2)

    run_forked([sender, receiver])
