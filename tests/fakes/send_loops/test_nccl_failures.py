"""How an NCCL send fails: what blocks, what an abort frees, what the metadata check says."""

from __future__ import annotations

import multiprocessing
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.data_plane.receivers import make_worker_transfer
from fakes.megatron.source import ParamMeta
from fakes.send_loops import ChannelSettings, open_channel, open_nccl
from fakes.send_loops.nccl import checked_iter
from harness.contracts import NoFaults, no_record
from tests.fakes.data_plane.forked import run_forked
from tests.fakes.data_plane.test_nccl_like import STILL_S
from tests.fakes.send_loops.doubles import FiveTensors, PipeClient, Trace


def settings(directory: Path, **changes: Any) -> ChannelSettings:
    return ChannelSettings(
        **{
            "transport": "nccl",
            "packed": False,
            "rank": 0,
            "total_workers": 1,
            "rendezvous_s": 10,
            "scratch_dir": directory,
            "injector": NoFaults(),
            "record": no_record,
            **changes,
        }
    )


def gathered(trace: Trace) -> int:
    return sum(line.startswith("gather") for line in trace)


def deaf_worker(pipe: Any) -> None:
    """Join the channel, then never receive."""
    transfer = make_worker_transfer("nccl", rank=0, world_size=1, gpu_uuid="GPU-0", rendezvous_s=10)
    transfer.init(pipe.recv()[1])
    pipe.send(None)


# fmt: off
UPDATE_REFUSED = [
    # id          packed  gathers before it blocks (None: it does not block)
    ("unpacked",  False,  None),
    ("packed",    True,   4),     # two buffers of two tensors are in flight
]
# fmt: on


@pytest.mark.parametrize(
    ("packed", "blocks_after"),
    [case[1:] for case in UPDATE_REFUSED],
    ids=[case[0] for case in UPDATE_REFUSED],
)
def test_update_refused_while_broadcasting(
    packed: bool, blocks_after: int | None, tmp_path: Path
) -> None:
    """Unpacked broadcasts only enqueue; packed ones block the sender until a local abort."""
    ours, theirs = multiprocessing.Pipe()

    def sender() -> list[Any]:
        trace: Trace = []
        source = FiveTensors(trace)
        client = PipeClient([ours], trace, ("update",), source.began)
        engine = open_nccl(settings(tmp_path, packed=packed, buffer_bytes=64), client, source)
        raised: list[str] = []

        def send() -> None:
            try:
                engine.send_weights()
            except RuntimeError as error:
                raised.append(str(error))

        thread = threading.Thread(target=send)
        thread.start()
        thread.join(5 if blocks_after is None else STILL_S)
        blocked_after = gathered(trace) if thread.is_alive() else None
        group = engine.model_update_group
        assert group is not None
        group.destroy()
        thread.join(5)
        engine.shutdown()
        return [blocked_after, gathered(trace), raised, engine.model_update_group is None]

    found, _ = run_forked([sender, lambda: deaf_worker(theirs)])
    assert found == [blocks_after, 5, ["update refused"], True]


def test_failed_rendezvous_waits_for_the_engine(tmp_path: Path) -> None:
    """A rendezvous that fails on the trainer is raised only once the init request has ended."""
    answered = threading.Event()

    class SlowEngine(PipeClient):
        def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
            answered.wait(5)

    caught: list[str] = []

    def connect() -> None:
        try:
            open_nccl(settings(tmp_path, rendezvous_s=0.05), SlowEngine([], []), FiveTensors([]))
        except Exception as error:
            caught.append(str(error))

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join(STILL_S)
    still_waits = thread.is_alive()
    answered.set()
    thread.join(5)
    assert still_waits
    assert caught == ["wait timeout after 50ms, keys: /0/1"]


def test_other_ranks_open_nothing(tmp_path: Path) -> None:
    """A rank that is not the sender calls no client and has no communicator."""
    trace: Trace = []
    engine = open_nccl(settings(tmp_path, rank=1), PipeClient([], trace), FiveTensors(trace))
    engine.send_weights()
    engine.shutdown()
    assert trace == ["metadata", *(f"gather w{index}" for index in range(5))]
    assert engine.model_update_group is None


def test_unknown_transport(tmp_path: Path) -> None:
    """The error lists the known transports."""
    text = "transport: expected one of ['ipc', 'nccl'], found 'disk'."
    with pytest.raises(ValueError, match=re.escape(text)):
        open_channel(settings(tmp_path, transport="disk"), PipeClient([], []), FiveTensors([]))


W = ("w", torch.zeros(2))
META = ParamMeta("w", torch.float32, (2,))
DISAGREES = (
    "WeightSource metadata() disagrees with iteration at index 0: declared 'w' torch.float32 "
    "{declared}, got {got}. Both channels must enumerate the same parameters in the same order."
)
# fmt: off
MISMATCHES = [
    # id       pairs                       metadata        text
    ("extra",  [W, ("x", torch.zeros(1))], [META],
     "WeightSource yielded more parameters than metadata() declared (1); first extra is 'x'."),
    ("short",  [W],                        [META, META],
     "WeightSource yielded 1 parameters but metadata() declared 2; the worker is waiting for the "
     "rest."),
    ("name",   [("v", torch.zeros(2))],    [META],
     DISAGREES.format(declared="(2,)", got="'v' torch.float32 (2,)")),
    ("shape",  [("w", torch.zeros(3))],    [META],
     DISAGREES.format(declared="(2,)", got="'w' torch.float32 (3,)")),
    ("dtype",  [("w", torch.zeros(2).half())], [META],
     DISAGREES.format(declared="(2,)", got="'w' torch.float16 (2,)")),
]
# fmt: on


@pytest.mark.parametrize(
    ("pairs", "metadata", "text"), [c[1:] for c in MISMATCHES], ids=[c[0] for c in MISMATCHES]
)
def test_checked_iter(
    pairs: Sequence[tuple[str, torch.Tensor]], metadata: Sequence[ParamMeta], text: str
) -> None:
    """An iteration that disagrees with the metadata is refused with vLLM's text."""

    class Source:
        def metadata(self) -> Sequence[ParamMeta]:
            return metadata

        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            return iter(pairs)

    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        list(checked_iter(Source(), metadata))
