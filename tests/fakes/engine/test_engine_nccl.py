"""An engine on the broadcast data plane, and what its wire format does to a straight resend."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch
from fake_engines import SEED, fault, running_process

from fakes import model_spec
from fakes.data_plane.nccl_like import NcclLikeCommunicator
from fakes.data_plane.packing import nccl_chunks

pytestmark = pytest.mark.processes

BUFFER_BYTES = 1 << 30
QKV = "model.layers.0.self_attn.qkv_proj.weight"


class Sender:
    """A trainer's rank 0 with a channel of its own to one engine."""

    def __init__(self, client: httpx.Client, *, workers: int, packed: bool) -> None:
        self._client, self._packed = client, packed
        self._side = ThreadPoolExecutor(max_workers=1)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        init_info = {
            "master_address": "127.0.0.1",
            "master_port": port,
            "rank_offset": 1,
            "world_size": 1 + workers,
            "packed": packed,
            "packed_buffer_size_bytes": BUFFER_BYTES,
        }
        joined = self._side.submit(
            client.post, "/init_weight_transfer_engine", json={"init_info": init_info}
        )
        self._group = NcclLikeCommunicator(
            master_address="127.0.0.1",
            master_port=port,
            rank=0,
            world_size=1 + workers,
            rendezvous_s=10,
        )
        assert joined.result().status_code == 200

    def push(self, step: int) -> list[int]:
        """Start, update and finish; return the status of each."""
        sources = model_spec.source_tensors()
        info = {
            "names": [source.name for source in sources],
            "dtype_names": ["float32"] * len(sources),
            "shapes": [source.shape for source in sources],
        }
        tensors = [(source.name, _full(source, step)) for source in sources]
        started = self._client.post("/start_weight_update")
        updating = self._side.submit(
            self._client.post, "/update_weights", json={"update_info": info}
        )
        if self._packed:
            for _, chunk in nccl_chunks(iter(tensors), buffer_bytes=BUFFER_BYTES):
                self._group.broadcast(chunk, src=0)
        else:
            for _, tensor in tensors:
                self._group.broadcast(tensor, src=0)
        updated = updating.result()
        self._group.destroy()
        finished = self._client.post("/finish_weight_update")
        return [answer.status_code for answer in (started, updated, finished)]


def _full(source: model_spec.SourceTensor, step: int) -> torch.Tensor:
    data = bytearray(model_spec.full_bytes(SEED, step, source))
    return torch.frombuffer(data, dtype=torch.float32).view(source.shape)


# fmt: off
CASES = [
    # id          packed    torn after a resend that follows a failure in the fused layer
    ("packed",    True,     [QKV]),
    ("unpacked",  False,    []),
]
# fmt: on


@pytest.mark.parametrize(
    ("packed", "torn"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_straight_resend(tmp_path: Path, packed: bool, torn: list[str]) -> None:
    """A late shard is dropped within one packed chunk, and written in place one by one."""
    key = "model.layers.0.self_attn.k_proj.weight"
    faults = [fault("raise", "worker.load", where={"tensor": key})]
    with (
        running_process(tmp_path, faults=faults, backend="nccl", rendezvous_s=10.0) as (url, _, _),
        httpx.Client(base_url=url, timeout=20) as client,
    ):
        assert Sender(client, workers=1, packed=packed).push(1) == [200, 500, 500]
        assert Sender(client, workers=1, packed=packed).push(1) == [200, 200, 200]
        found = client.get("/harness/state").json()["checksums"]
    wanted = model_spec.expected_checksums(SEED, 1, 1)
    differ = [key.split(":")[-1] for key in wanted if found[key] != wanted[key]]
    assert differ == torn


def test_a_push_is_whole(tmp_path: Path) -> None:
    """Two pushes over channels of their own leave exactly the second's weights."""
    workers = 2
    shape = {"workers": workers, "backend": "nccl", "rendezvous_s": 10.0}
    with (
        running_process(tmp_path, **shape) as (url, _, _),
        httpx.Client(base_url=url, timeout=20) as client,
    ):
        for step, packed in ((1, True), (2, False)):
            assert Sender(client, workers=workers, packed=packed).push(step) == [200, 200, 200]
            found = client.get("/harness/state").json()["checksums"]
            assert found == model_spec.expected_checksums(SEED, step, workers)
