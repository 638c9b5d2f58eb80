"""vLLM's trainer engines with vLLM's own HTTP client, against a fake engine's process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient, ParamMeta

from fakes.model_spec import expected_checksums, full_bytes, source_tensors
from fakes.send_loops import ChannelSettings
from harness.contracts import NoFaults, no_record
from tests.conformance.fake_engines import SEED, running_process
from tests.fakes.data_plane.forked import run_forked
from vllm_engine.trainer import open_channel

WORKERS = 2
STEP = 3
LIMIT_S = 20.0


class JsonHandles(HTTPVLLMWeightSyncClient):  # type: ignore[misc]
    """Posts handles as they are: ours are JSON, and the fake unpickles nothing."""

    def update_weights(self, update_info: Any) -> None:
        self._post("update_weights", {"update_info": update_info})


class OneRank:
    """The model's tensors, as a trainer of one rank holds them."""

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(t.name, torch.float32, t.shape) for t in source_tensors()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for spec in source_tensors():
            data = bytearray(full_bytes(SEED, STEP, spec))
            yield spec.name, torch.frombuffer(data, dtype=torch.float32).view(spec.shape)


# fmt: off
PUSHES = [
    # id             transport packed  client
    ("nccl",         "nccl",   False,  HTTPVLLMWeightSyncClient),
    ("nccl-packed",  "nccl",   True,   HTTPVLLMWeightSyncClient),
    ("ipc",          "ipc",    False,  JsonHandles),
    ("ipc-packed",   "ipc",    True,   JsonHandles),
]
# fmt: on


@pytest.mark.parametrize(
    ("transport", "packed", "client"), [c[1:] for c in PUSHES], ids=[c[0] for c in PUSHES]
)
def test_what_arrives(transport: str, packed: bool, client: type, tmp_path: Path) -> None:
    """After one push every worker holds, byte for byte, what was pushed."""
    with running_process(tmp_path, backend=transport, workers=WORKERS) as (url, _, _):

        def push() -> None:
            settings = ChannelSettings(
                transport=transport,
                packed=packed,
                rank=0,
                total_workers=WORKERS,
                rendezvous_s=LIMIT_S,
                scratch_dir=tmp_path,
                injector=NoFaults(),
                record=no_record,
            )
            engine = open_channel(settings, client(url, timeout=LIMIT_S), OneRank())
            engine.send_weights()
            engine.shutdown()

        run_forked([push])
        answer = requests.post(
            f"{url}/weight_checker", json={"action": "checksum"}, timeout=LIMIT_S
        )
    assert answer.json()["checksums"] == expected_checksums(SEED, STEP, WORKERS)
    assert [path.name for path in tmp_path.glob("ipc-*")] == []
