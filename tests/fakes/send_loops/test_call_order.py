"""Who calls what, in which order and from which thread: vLLM's traces, rank by rank."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fakes.megatron.layout import Layout
from fakes.megatron.world import World
from fakes.send_loops import ChannelSettings, open_channel
from tests.fakes.data_plane.forked import run_forked
from tests.fakes.send_loops.doubles import FiveTensors, PipeClient, Trace, Tracer, worker

NUM_RANKS = 2


def gathers(*indices: int) -> Trace:
    return [f"gather w{index}" for index in indices]


NCCL_INIT = ["bind", "client.init side", "rendezvous"]
IPC_INIT = ["client.init main"]
ALL = gathers(0, 1, 2, 3, 4)

# fmt: off
TRACES = [
    # id              transport packed  refuse       sender                                     peer
    ("nccl",          "nccl",   False,  (),
     [*NCCL_INIT, "metadata", "client.start main", "client.update side",
      *[line for i in range(5) for line in (f"gather w{i}", f"broadcast w{i}")],
      "client.finish main"],
     ["metadata", *ALL]),
    ("nccl-packed",   "nccl",   True,   (),
     [*NCCL_INIT, "metadata", "client.start main", "client.update side",
      *gathers(0, 1, 2), "broadcast w0", *gathers(3, 4), "broadcast w3", "client.finish main"],
     ["metadata", *ALL]),
    ("nccl-start",    "nccl",   False,  ("start",),
     [*NCCL_INIT, "metadata", "client.start main", "raised start refused"],
     ["metadata", "gather w0"]),
    ("nccl-update",   "nccl",   False,  ("update",),
     [*NCCL_INIT, "metadata", "client.start main", "client.update side",
      *[line for i in range(5) for line in (f"gather w{i}", f"broadcast w{i}")],
      "raised update refused"],
     ["metadata", *ALL]),
    ("nccl-finish",   "nccl",   True,   ("finish",),
     [*NCCL_INIT, "metadata", "client.start main", "client.update side",
      *gathers(0, 1, 2), "broadcast w0", *gathers(3, 4), "broadcast w3", "client.finish main",
      "raised finish refused"],
     ["metadata", *ALL]),
    ("ipc",           "ipc",    False,  (),
     [*IPC_INIT, "client.start main", *ALL, "barrier", "client.update main",
      "client.finish main", "barrier"],
     [*ALL, "barrier", "barrier"]),
    ("ipc-packed",    "ipc",    True,   (),
     [*IPC_INIT, "client.start main",
      *gathers(0, 1, 2), "barrier", "client.update main", "barrier",
      *gathers(3, 4), "barrier", "client.update main", "barrier",
      "barrier", "client.update main", "barrier", "client.finish main", "barrier"],
     [*gathers(0, 1, 2), "barrier", "barrier", *gathers(3, 4), *["barrier"] * 5]),
    ("ipc-start",     "ipc",    True,   ("start",),
     [*IPC_INIT, "client.start main", "raised start refused"],
     ["gather w0"]),
    ("ipc-update",    "ipc",    False,  ("update",),
     [*IPC_INIT, "client.start main", *ALL, "barrier", "client.update main",
      "raised update refused"],
     [*ALL, "barrier", "barrier"]),
    ("ipc-chunk",     "ipc",    True,   ("update",),
     [*IPC_INIT, "client.start main", *gathers(0, 1, 2), "barrier", "client.update main",
      "raised update refused"],
     [*gathers(0, 1, 2), "barrier", "barrier"]),
    ("ipc-finish",    "ipc",    False,  ("finish",),
     [*IPC_INIT, "client.start main", *ALL, "barrier", "client.update main",
      "client.finish main", "raised finish refused"],
     [*ALL, "barrier", "barrier"]),
]
# fmt: on


def run_ranks(
    transport: str, packed: bool, refuse: tuple[str, ...], directory: Path
) -> list[tuple[Trace, Trace]]:
    """Open a channel and push once; return each rank's trace and the fault points it reached."""
    ours, theirs = multiprocessing.Pipe()

    def rank(index: int) -> tuple[Trace, Trace]:
        trace: Trace = []
        tracer = Tracer(trace)
        layout = Layout(data=NUM_RANKS)
        world = World(layout, rank=index, store_path=directory / "store", timeout_s=20)
        settings = ChannelSettings(
            transport=transport,
            packed=packed,
            rank=index,
            total_workers=1,
            rendezvous_s=10,
            scratch_dir=directory,
            injector=tracer,
            record=tracer.record,
            buffer_bytes=128,
        )
        source = FiveTensors(trace)
        client = PipeClient([ours], trace, refuse, source.began)
        engine = open_channel(settings, client, source)
        try:
            engine.send_weights()
        except RuntimeError as error:
            if index == 0:  # the peers only lose their connection
                trace.append(f"raised {error}")
        if index == 0:
            engine.shutdown()
            client.stop()
            world.close()
        return trace, tracer.points

    functions: list[Callable[[], Any]] = [
        *(partial(rank, index) for index in range(NUM_RANKS)),
        partial(worker, theirs, transport, 0, 1),
    ]
    return run_forked(functions)[:NUM_RANKS]


@pytest.mark.parametrize(
    ("transport", "packed", "refuse", "sender", "peer"),
    [case[1:] for case in TRACES],
    ids=[case[0] for case in TRACES],
)
def test_call_order(
    transport: str,
    packed: bool,
    refuse: tuple[str, ...],
    sender: Trace,
    peer: Trace,
    tmp_path: Path,
) -> None:
    """Every rank does what vLLM's trainer engine does, also when the engine refuses a call."""
    (found_sender, _), (found_peer, _) = run_ranks(transport, packed, refuse, tmp_path)
    # Calls from the side thread run beside the main thread's work: their place is not fixed.
    side = [line for line in sender if line.endswith(" side")]
    assert [line for line in found_sender if line not in side] == [
        line for line in sender if line not in side
    ]
    assert [line for line in found_sender if line in side] == side
    assert found_peer == peer


NCCL_POINTS = {"bind": 1, "rendezvous": 1, "update_call": 1, "update_sent": 1}

# fmt: off
POINTS = [
    # id             transport packed  sender                              peer
    ("nccl",         "nccl",   False,  {**NCCL_POINTS, "broadcast": 5},    {}),
    ("nccl-packed",  "nccl",   True,   {**NCCL_POINTS, "broadcast": 2},    {}),
    ("ipc",          "ipc",    False,  {"update_call": 1, "barrier": 2},   {"barrier": 2}),
    ("ipc-packed",   "ipc",    True,   {"update_call": 3, "barrier": 7},   {"barrier": 7}),
]
# fmt: on


@pytest.mark.parametrize(
    ("transport", "packed", "sender", "peer"),
    [case[1:] for case in POINTS],
    ids=[case[0] for case in POINTS],
)
def test_fault_points(
    transport: str, packed: bool, sender: dict[str, int], peer: dict[str, int], tmp_path: Path
) -> None:
    """Every place where a fault may strike is reached as often as the thing happens."""
    (_, on_sender), (_, on_peer) = run_ranks(transport, packed, (), tmp_path)
    assert Counter(on_sender) == {f"rank.{point}": count for point, count in sender.items()}
    assert Counter(on_peer) == {f"rank.{point}": count for point, count in peer.items()}
