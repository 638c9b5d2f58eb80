"""The workers' ends: vLLM's rules and its exact texts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.data_plane.nccl_like import NcclLikeCommunicator
from fakes.data_plane.receivers import NcclWorkerTransfer, WorkerTransfer, make_worker_transfer
from fakes.data_plane.shared_memory import SharedMemoryExporter
from fakes.send_loops.nccl import free_port
from tests.fakes.data_plane.forked import run_forked

ADDRESS = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2}
TENSOR = {"names": ["w"], "dtype_names": ["float32"], "shapes": [[2]]}


def make(backend: str, gpu_uuid: str = "GPU-0", rank: int = 0) -> WorkerTransfer:
    return make_worker_transfer(
        backend, rank=rank, world_size=2, gpu_uuid=gpu_uuid, rendezvous_s=0.05
    )


# fmt: off
BAD_INIT = [
    # id                backend  init_info                                      text
    ("unknown-field",   "ipc",   {"packet": True},
     "Invalid init_info for IPCWeightTransferEngine: IPCWeightTransferInitInfo.__init__() got an "
     "unexpected keyword argument 'packet'"),
    ("missing-fields",  "nccl",  {"master_address": "a", "master_port": 1},
     "Invalid init_info for NCCLWeightTransferEngine: NCCLWeightTransferInitInfo.__init__() "
     "missing 2 required keyword-only arguments: 'rank_offset' and 'world_size'"),
    ("no-rendezvous",   "nccl",  {"rank_offset": 1, "world_size": 2, "master_port": 1},
     "NCCLWeightTransferInitInfo: need nccl_unique_id_b64, or both master_address and master_port "
     "(got master_address=None, master_port=1)"),
    ("two-rendezvous",  "nccl",  {**ADDRESS, "nccl_unique_id_b64": "AAAA"},
     "NCCLWeightTransferInitInfo: pass nccl_unique_id_b64 OR master_address/master_port, not both"),
    ("not-base64",      "nccl",  {"rank_offset": 1, "world_size": 2, "nccl_unique_id_b64": "_-"},
     "NCCLWeightTransferInitInfo: nccl_unique_id_b64 is not valid standard base64 "
     "(URL-safe base64 is not accepted)"),
    ("short-id",        "nccl",  {"rank_offset": 1, "world_size": 2, "nccl_unique_id_b64": "AAAA"},
     "NCCLWeightTransferInitInfo: nccl_unique_id_b64 must decode to 128 bytes, got 3"),
]
BAD_UPDATE = [
    # id                backend  packed  update_info                            text
    ("missing",         "nccl",  False,  {"names": [], "dtype_names": []},
     "Invalid update_info for NCCLWeightTransferEngine: NCCLWeightTransferUpdateInfo.__init__() "
     "missing 1 required positional argument: 'shapes'"),
    ("dtypes",          "nccl",  False,  {**TENSOR, "dtype_names": []},
     "`dtype_names` should be of the same size as `names`: got 0 and 1"),
    ("shapes",          "nccl",  False,  {**TENSOR, "shapes": [[1], [2]]},
     "`shapes` should be of the same size as `names`: got 2 and 1"),
    ("no-handles",      "ipc",   False,  TENSOR,
     "Either `ipc_handles` or `ipc_handles_pickled` must be provided"),
    ("pickled",         "ipc",   False,  {**TENSOR, "ipc_handles_pickled": "gAQu"},
     "Refusing to deserialize `ipc_handles_pickled` without VLLM_ALLOW_INSECURE_SERIALIZATION=1"),
    ("both",            "ipc",   False,  {**TENSOR, "ipc_handles": [], "ipc_handles_pickled": ""},
     "Cannot specify both `ipc_handles` and `ipc_handles_pickled`"),
    ("handles",         "ipc",   False,  {**TENSOR, "ipc_handles": []},
     "`ipc_handles` should be of the same size as `names`: got 0 and 1"),
    ("other-gpu",       "ipc",   False,  {**TENSOR, "ipc_handles": [{"GPU-7": {}}]},
     "IPC handle not found for GPU UUID GPU-0. Available UUIDs: ['GPU-7']"),
    ("no-sizes",        "ipc",   True,   {**TENSOR, "ipc_handles": {}},
     "`tensor_sizes` is required when packed=True"),
]
# fmt: on


@pytest.mark.parametrize(
    ("backend", "init_info", "text"), [c[1:] for c in BAD_INIT], ids=[c[0] for c in BAD_INIT]
)
def test_refused_init(backend: str, init_info: dict[str, Any], text: str) -> None:
    """A payload that vLLM refuses at init is refused with the same text."""
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        make(backend).init(init_info)


@pytest.mark.parametrize(
    ("backend", "packed", "update_info", "text"),
    [c[1:] for c in BAD_UPDATE],
    ids=[c[0] for c in BAD_UPDATE],
)
def test_refused_update(backend: str, packed: bool, update_info: dict[str, Any], text: str) -> None:
    """A payload that vLLM refuses at update is refused with the same text, before any tensor."""
    transfer = make(backend)
    if backend == "ipc":
        transfer.init({"packed": packed})
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        transfer.receive(update_info)


@pytest.mark.parametrize("packed", [False, True])
def test_packing_mismatch_is_an_empty_assertion(packed: bool) -> None:
    """Handles of the other packing fail as in vLLM: an AssertionError without a text."""
    transfer = make("ipc")
    transfer.init({"packed": packed})
    handles: Any = [{}] if packed else {}
    with pytest.raises(AssertionError) as caught:
        transfer.receive({**TENSOR, "ipc_handles": handles, "tensor_sizes": [8]})
    assert str(caught.value) == ""


def test_receive_before_init() -> None:
    """NCCL needs a channel."""
    text = "NCCL weight transfer not initialized. Call init_transfer_engine() first."
    with pytest.raises(RuntimeError, match=re.escape(text)):
        make("nccl").receive(TENSOR)


def test_failed_init_leaves_new_flags_with_the_old_channel() -> None:
    """The packing flags change before the rendezvous, the channel after it."""
    transfer = make("nccl")
    assert isinstance(transfer, NcclWorkerTransfer)
    with pytest.raises(Exception, match="timed out after 50ms while trying to connect"):
        transfer.init({**ADDRESS, "master_port": free_port(), "packed": True})
    assert transfer.packed
    assert transfer.model_update_group is None


def test_unknown_backend() -> None:
    """The error lists the known ones."""
    text = "Invalid weight transfer backend: rdma. Available engines: ['nccl', 'ipc']"
    with pytest.raises(ValueError, match=re.escape(text)):
        make("rdma")


def test_rank_outside_its_engine() -> None:
    """A worker's rank is below its engine's world size."""
    with pytest.raises(ValueError, match=r"expected 0 to 1 \(world_size is 2\), found 2"):
        make("ipc", rank=2)


def test_unpacked_ipc_aliases_packed_ipc_copies(tmp_path: Path) -> None:
    """Unpacked tensors follow the trainer's memory; packed ones keep what they were."""
    exporter = SharedMemoryExporter(tmp_path)
    buffer = exporter.reduce(torch.ones(2))
    handles = {"GPU-0": buffer.handle}
    unpacked, packed = make("ipc"), make("ipc")
    unpacked.init({"packed": False})
    packed.init({"packed": True})
    [(_, alias)] = unpacked.receive({**TENSOR, "ipc_handles": [handles]})
    [(_, copy)] = packed.receive({**TENSOR, "ipc_handles": handles, "tensor_sizes": [8]})
    buffer.tensor.view(torch.float32).fill_(2.0)
    assert (alias.tolist(), copy.tolist()) == ([2.0, 2.0], [1.0, 1.0])


def test_second_init_replaces_the_channel() -> None:
    """A second init joins a new group and leaves the old one undestroyed."""
    ports = [free_port(), free_port()]

    def sender() -> None:
        for port in ports:
            NcclLikeCommunicator(
                master_address="127.0.0.1", master_port=port, rank=0, world_size=2, rendezvous_s=5
            )

    def worker() -> list[bool]:
        transfer = NcclWorkerTransfer(rank=0, rendezvous_s=5, record=lambda event, **fields: None)
        groups = []
        for port in ports:
            transfer.init({**ADDRESS, "master_port": port})
            groups.append(transfer.model_update_group)
        old, new = groups
        assert old is not None
        assert new is not None
        return [old is new, old.disabled, new.disabled]

    assert run_forked([sender, worker]) == [None, [False, False, False]]
