"""Whole transfers: what every worker received is, byte for byte, what the trainer holds."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fakes.megatron.layout import Layout
from fakes.megatron.source import MegatronWeightSource
from fakes.megatron.world import World
from fakes.model_spec import full_bytes, source_tensors
from fakes.send_loops import ChannelSettings, open_channel
from harness.contracts import NoFaults, no_record
from tests.fakes.data_plane.forked import run_forked
from tests.fakes.send_loops.doubles import PipeClient, worker

SEED = 11

# fmt: off
TRANSFERS = [
    # id                     transport  packed  layout                       workers
    ("nccl",                 "nccl",    False,  Layout(tensor=2, data=2),    4),
    ("nccl-packed",          "nccl",    True,   Layout(tensor=2, data=2),    4),
    ("nccl-one-rank",        "nccl",    True,   Layout(),                    2),
    ("ipc",                  "ipc",     False,  Layout(tensor=2, data=2),    4),
    ("ipc-packed",           "ipc",     True,   Layout(tensor=2, data=2),    4),
    ("ipc-shared-gpus",      "ipc",     True,   Layout(tensor=2),            4),
    ("ipc-few-workers",      "ipc",     False,  Layout(data=2),              1),
    ("ipc-one-rank",         "ipc",     False,  Layout(),                    2),
    ("nccl-pipeline",        "nccl",    False,  Layout(pipeline=2),          1),
]
# fmt: on


@pytest.mark.parametrize(
    ("transport", "packed", "layout", "num_workers"),
    [case[1:] for case in TRANSFERS],
    ids=[case[0] for case in TRANSFERS],
)
def test_workers_receive_the_bytes(
    transport: str, packed: bool, layout: Layout, num_workers: int, tmp_path: Path
) -> None:
    """Over two channels, each for one step, every worker ends with the last step's bytes."""
    pipes = [multiprocessing.Pipe() for _ in range(num_workers)]
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def rank(index: int) -> None:
        world = World(layout, rank=index, store_path=tmp_path / "store", timeout_s=10)
        source = MegatronWeightSource(world, seed=SEED, injector=NoFaults(), record=no_record)
        settings = ChannelSettings(
            transport=transport,
            packed=packed,
            rank=index,
            total_workers=num_workers,
            rendezvous_s=10,
            scratch_dir=scratch,
            injector=NoFaults(),
            record=no_record,
        )
        client = PipeClient([ours for ours, _ in pipes], [])
        for step in (1, 2):
            source.step = step
            engine = open_channel(settings, client, source)
            engine.send_weights()
            engine.shutdown()
        if index == 0:
            client.stop()

    functions: list[Callable[[], Any]] = [
        *(partial(rank, index) for index in range(layout.world_size)),
        *(
            partial(worker, pipes[index][1], transport, index, num_workers)
            for index in range(num_workers)
        ),
    ]
    received = run_forked(functions)[layout.world_size :]
    expected = {
        spec.name: hashlib.sha256(full_bytes(SEED, 2, spec)).hexdigest()
        for spec in source_tensors()
    }
    assert received == [expected] * num_workers
    assert list(scratch.iterdir()) == []
