"""What a rank's process takes from its config beside the fakes' own: the model, the send loop."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.data_plane.packing import nccl_chunk_layouts
from fakes.megatron.process import RankProcess
from fakes.model_spec import SHAPES, source_tensors
from fakes.send_loops import ChannelSettings
from harness.channel import SocketChannel
from harness.contracts import Json, TargetContext
from tests.fakes.data_plane.forked import run_forked

HERE = "tests.fakes.megatron.test_process"


class Opened:
    """A trainer engine of somebody else's, with the settings that it was opened with."""

    def __init__(self, settings: ChannelSettings) -> None:
        self.settings = settings


def opener(settings: ChannelSettings, client: object, source: object) -> Opened:
    """Open no channel."""
    return Opened(settings)


class Target:
    """Opens a channel when it connects, and says what it got."""

    def __init__(self, context: TargetContext) -> None:
        self._context = context

    def connect(self) -> Mapping[str, Json]:
        trainer: Any = self._context.open_channel(None, self._context.source)
        settings = getattr(trainer, "settings", None)
        return {
            "opened": type(trainer).__name__,
            "buffer_bytes": settings and settings.buffer_bytes,
            "shapes": [[meta.name, *meta.shape] for meta in self._context.source.metadata()],
        }

    def push(self) -> Mapping[str, Json]:
        return {}

    def version(self) -> str:
        return "default"

    def close(self) -> None: ...


def connect(directory: Path, **given: Json) -> Any:
    """Return what the target's connect says, in a rank made with this config."""
    config = {
        "rank": 0,
        "layout": {},
        "store": str(directory / "store"),
        "seed": 1,
        "engines": [],
        "transport": "nccl",
        "packed": True,
        "draft": False,
        "timeouts": {"init_s": 1, "request_s": 1, "process_group_s": 5, "rendezvous_s": 1},
        "scratch": str(directory),
        "journal": str(directory / "journal.jsonl"),
        "faults": [],
        "push": 0,
        "target": f"{HERE}:Target",
        "target_options": {},
        **given,
    }

    def rank() -> Any:
        ours, theirs = socket.socketpair()
        process = RankProcess(config, SocketChannel(theirs))
        for command in ({"cmd": "connect"}, {"cmd": "close"}):
            process.commands.put(command)
        process.work()
        launcher = SocketChannel(ours)
        assert launcher.receive() == {"reply": "ready"}
        return launcher.receive()

    [reply] = run_forked([rank])
    return reply


@pytest.mark.parametrize("kind", SHAPES)
def test_another_model_and_send_loop(kind: str, tmp_path: Path) -> None:
    """The source has the model's extents, and a packed pass as many chunks as the fake's."""
    reply = connect(tmp_path, model=kind, opener=f"{HERE}:opener")
    tensors = source_tensors(shape=SHAPES[kind])
    assert reply["ok"]
    assert reply["result"]["opened"] == "Opened"
    assert reply["result"]["shapes"] == [[tensor.name, *tensor.shape] for tensor in tensors]
    assert num_chunks(kind, reply["result"]["buffer_bytes"]) == num_chunks(
        "fake", ChannelSettings.buffer_bytes
    )
    largest = max(tensor.num_bytes for tensor in tensors)
    assert reply["result"]["buffer_bytes"] >= largest  # or packed IPC refuses it


def num_chunks(kind: str, buffer_bytes: int) -> int:
    """Return the number of chunks of one packed pass."""
    float32 = torch.float32
    metadata = [(t.name, float32, t.shape) for t in source_tensors(shape=SHAPES[kind])]
    return len(list(nccl_chunk_layouts(metadata, buffer_bytes=buffer_bytes)))


def test_by_default_the_fakes_own(tmp_path: Path) -> None:
    """Where nothing is named: the tiny model and our send loop, here with no engine to ask."""
    reply = connect(tmp_path, transport="ipc")
    assert reply["error"] == "'NoneType' object has no attribute 'init_weight_transfer_engine'"
