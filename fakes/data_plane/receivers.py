"""The worker's end of a channel: what an engine's worker does to receive tensors.

Each class follows vLLM's worker engine line by line and raises its exact texts; loading the
tensors into the model is the caller's.

Source: ``NCCLWeightTransferEngine`` and ``IPCWeightTransferEngine`` of vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch

from fakes.data_plane.nccl_like import NcclLikeCommunicator
from fakes.data_plane.packing import PackedChunk, nccl_chunk_layouts, unpack
from fakes.data_plane.payloads import (
    DEFAULT_BUFFER_BYTES,
    DEFAULT_NUM_BUFFERS,
    IPCWeightTransferInitInfo,
    IPCWeightTransferUpdateInfo,
    NCCLWeightTransferInitInfo,
    NCCLWeightTransferUpdateInfo,
    parse_payload,
)
from fakes.data_plane.shared_memory import open_handle
from harness.contracts import Json, Recorder, no_record

NamedTensors = Iterator[tuple[str, torch.Tensor]]


class WorkerTransfer(Protocol):
    """One worker's end of a channel. Used from that worker's thread alone, but for `pending`."""

    def init(self, init_info: Mapping[str, Json]) -> None:
        """Open the channel; again replaces it, without closing the old one.

        Raises:
            ValueError: the payload is not what this backend takes.
            Exception: the sender was not reached in ``rendezvous_s``.
        """

    def receive(self, update_info: Mapping[str, Json]) -> NamedTensors:
        """Validate the payload now, and return the full tensors as they arrive.

        With NCCL each ``next`` may block for ever, until `shutdown`.

        Raises:
            ValueError: the payload is not what this backend takes.
            RuntimeError: the channel was not opened.
            AttributeError: unknown dtype name (on the ``next`` that meets it, unless packed).
        """

    def finish(self) -> None:
        """Drop what the update still maps; call it after every tensor was processed."""

    def shutdown(self) -> None:
        """Close the channel: the local side alone. Callable from any thread."""

    def pending(self) -> list[dict[str, Json]]:
        """Return what the channel waits in, from any thread; empty when nothing."""


class NcclWorkerTransfer:
    """Receives broadcasts. ``rank`` is the worker's within its engine."""

    def __init__(self, *, rank: int, rendezvous_s: float, record: Recorder) -> None:
        self._rank = rank
        self._rendezvous_s = rendezvous_s
        self._record = record
        self.model_update_group: NcclLikeCommunicator | None = None
        self.packed = False
        self.packed_buffer_size_bytes = DEFAULT_BUFFER_BYTES
        self.packed_num_buffers = DEFAULT_NUM_BUFFERS

    def init(self, init_info: Mapping[str, Json]) -> None:
        info = parse_payload(
            NCCLWeightTransferInitInfo,
            init_info,
            what="init_info",
            engine="NCCLWeightTransferEngine",
        )
        # Before the rendezvous, as in vLLM: a failed one leaves new flags with the old channel.
        self.packed = info.packed
        self.packed_buffer_size_bytes = info.packed_buffer_size_bytes
        self.packed_num_buffers = info.packed_num_buffers
        if info.nccl_unique_id_b64:
            raise RuntimeError("failed to load the NCCL library for unique-id rendezvous")
        assert info.master_address is not None
        assert info.master_port is not None
        self.model_update_group = NcclLikeCommunicator(
            master_address=info.master_address,
            master_port=info.master_port,
            rank=self._rank + info.rank_offset,
            world_size=info.world_size,
            rendezvous_s=self._rendezvous_s,
            record=self._record,
        )

    def receive(self, update_info: Mapping[str, Json]) -> NamedTensors:
        info = parse_payload(
            NCCLWeightTransferUpdateInfo,
            update_info,
            what="update_info",
            engine="NCCLWeightTransferEngine",
        )
        if self.model_update_group is None:
            raise RuntimeError(
                "NCCL weight transfer not initialized. Call init_transfer_engine() first."
            )
        receive = self._receive_packed if self.packed else self._receive_each
        return receive(info, self.model_update_group)

    @staticmethod
    def _receive_each(
        info: NCCLWeightTransferUpdateInfo, group: NcclLikeCommunicator
    ) -> NamedTensors:
        for name, dtype_name, shape in zip(info.names, info.dtype_names, info.shapes, strict=True):
            weight = torch.empty(shape, dtype=getattr(torch, dtype_name))
            group.broadcast(weight, src=0)
            # On a GPU the load would be enqueued behind the broadcast; on a CPU we wait for it.
            group.synchronize()
            yield name, weight

    def _receive_packed(
        self, info: NCCLWeightTransferUpdateInfo, group: NcclLikeCommunicator
    ) -> NamedTensors:
        metadata = (
            (name, getattr(torch, dtype_name), shape)
            for name, dtype_name, shape in zip(
                info.names, info.dtype_names, info.shapes, strict=True
            )
        )
        for chunk in nccl_chunk_layouts(metadata, buffer_bytes=self.packed_buffer_size_bytes):
            packed = torch.empty(chunk.num_bytes, dtype=torch.uint8)
            group.broadcast(packed, src=0)
            group.synchronize()
            yield from unpack(packed, chunk)

    def finish(self) -> None:
        """Nothing outlives the broadcasts."""

    def shutdown(self) -> None:
        if self.model_update_group is not None:
            self.model_update_group.destroy()
            self.model_update_group = None

    def pending(self) -> list[dict[str, Json]]:
        group = self.model_update_group
        return [] if group is None else group.pending()


class IpcWorkerTransfer:
    """Maps the trainer's memory. ``gpu_uuid`` picks the handle that its own GPU can open."""

    def __init__(self, *, gpu_uuid: str) -> None:
        self._gpu_uuid = gpu_uuid
        self._packed_buffer: tuple[Json, torch.Tensor] | None = None  # handle, mapping
        self.packed = False

    def init(self, init_info: Mapping[str, Json]) -> None:
        info = parse_payload(
            IPCWeightTransferInitInfo, init_info, what="init_info", engine="IPCWeightTransferEngine"
        )
        self.packed = info.packed

    def receive(self, update_info: Mapping[str, Json]) -> NamedTensors:
        info = parse_payload(
            IPCWeightTransferUpdateInfo,
            update_info,
            what="update_info",
            engine="IPCWeightTransferEngine",
        )
        return iter(self._open_packed(info) if self.packed else self._open_each(info))

    def _open_packed(self, info: IPCWeightTransferUpdateInfo) -> list[tuple[str, torch.Tensor]]:
        if info.tensor_sizes is None:
            raise ValueError("`tensor_sizes` is required when packed=True")
        if not isinstance(info.ipc_handles, dict):
            raise AssertionError  # vLLM's has no text; pytest would give an `assert` one
        buffer = self._import_packed(self._own_handle(info.ipc_handles))
        dtypes = [getattr(torch, name) for name in info.dtype_names]
        chunk = PackedChunk(
            info.names, dtypes, info.shapes, info.tensor_sizes, sum(info.tensor_sizes)
        )
        # The producer reuses its buffer for the next chunk, so what we hand out is a copy.
        return [(name, tensor.clone()) for name, tensor in unpack(buffer, chunk)]

    def _open_each(self, info: IPCWeightTransferUpdateInfo) -> list[tuple[str, torch.Tensor]]:
        """Map every tensor; they alias the trainer's memory, as in vLLM."""
        if not isinstance(info.ipc_handles, list):
            raise AssertionError
        weights = []
        for name, dtype_name, shape, handles in zip(
            info.names, info.dtype_names, info.shapes, info.ipc_handles, strict=True
        ):
            memory = open_handle(self._own_handle(handles))
            weights.append((name, memory.view(getattr(torch, dtype_name)).view(shape)))
        return weights

    def _own_handle(self, handles: Mapping[str, Json]) -> Mapping[str, Json]:
        if self._gpu_uuid not in handles:
            raise ValueError(
                f"IPC handle not found for GPU UUID {self._gpu_uuid}. "
                f"Available UUIDs: {list(handles.keys())}"
            )
        handle: Mapping[str, Json] = handles[self._gpu_uuid]
        return handle

    def _import_packed(self, handle: Mapping[str, Json]) -> torch.Tensor:
        """Map the packed buffer once for all chunks of one export."""
        if self._packed_buffer is None or self._packed_buffer[0] != handle:
            self._packed_buffer = (handle, open_handle(handle))
        return self._packed_buffer[1]

    def finish(self) -> None:
        self._packed_buffer = None

    def shutdown(self) -> None:
        self._packed_buffer = None

    def pending(self) -> list[dict[str, Json]]:
        return []


WorkerTransferMaker = Callable[[int, str, float, Recorder], WorkerTransfer]

WORKER_TRANSFERS: Mapping[str, WorkerTransferMaker] = {
    "nccl": lambda rank, _uuid, rendezvous_s, record: NcclWorkerTransfer(
        rank=rank, rendezvous_s=rendezvous_s, record=record
    ),
    "ipc": lambda _rank, uuid, _rendezvous_s, _record: IpcWorkerTransfer(gpu_uuid=uuid),
}


def make_worker_transfer(
    backend: str,
    *,
    rank: int,
    world_size: int,
    gpu_uuid: str,
    rendezvous_s: float,
    record: Recorder = no_record,
) -> WorkerTransfer:
    """Return one worker's end of a channel, not opened yet.

    Args:
        backend: a key of `WORKER_TRANSFERS`.
        rank: the worker's rank within its engine, below ``world_size``.
        world_size: number of workers of its engine.
        gpu_uuid: identity of the worker's GPU, unique over all engines.
        rendezvous_s: how long ``init`` waits for the sender, in seconds.
        record: gets the ``data_plane`` events.

    Raises:
        ValueError: unknown backend, or a rank outside its engine.
    """
    if backend not in WORKER_TRANSFERS:
        raise ValueError(
            f"Invalid weight transfer backend: {backend}. "
            f"Available engines: {list(WORKER_TRANSFERS)}"
        )
    if not 0 <= rank < world_size:
        raise ValueError(
            f"rank: expected 0 to {world_size - 1} (world_size is {world_size}), found {rank}."
        )
    return WORKER_TRANSFERS[backend](rank, gpu_uuid, rendezvous_s, record)
