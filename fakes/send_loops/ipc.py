"""The trainer's end of an IPC channel, in vLLM's shape, call order and threads.

Source: ``IPCTrainerWeightTransferEngine`` of vLLM 0.32 (``weight_transfer/ipc_engine.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from fakes.data_plane.packing import PackedChunk, dtype_name, ipc_chunks
from fakes.data_plane.shared_memory import SharedMemoryExporter
from fakes.send_loops.protocols import WeightSource, WeightSyncClient
from fakes.send_loops.settings import ChannelSettings
from harness.contracts import Json

Handles = dict[str, Json]  # gpu uuid -> handle


class IpcTrainerEngine:
    """Sends weights by handles to shared memory; made by `open_ipc`.

    Every rank exports its copy for the engine workers on its own GPU: rank ``r`` for each
    ``GPU-<n>`` with ``n % world_size == r``. Collectives run on the default process group; of a
    slot, on the slot's.

    Attributes:
        client: the engines' control plane.
        source: the weights.
        is_sender: whether this rank is the one that talks to the engines.
        packed: whether tensors share a buffer.
        exporter: the memory that this rank has handed out.
    """

    def __init__(
        self, settings: ChannelSettings, client: WeightSyncClient, source: WeightSource
    ) -> None:
        self.client = client
        self.source = source
        self.is_sender = settings.is_sender
        self.packed = settings.packed
        self.exporter = SharedMemoryExporter(settings.scratch_dir)
        self._settings = settings
        slot = settings.slot
        self._group = None if slot is None else slot.group  # None: the default one
        if slot is not None:
            self._num_ranks = len(slot.ranks)
        else:
            self._num_ranks = dist.get_world_size() if dist.is_initialized() else 1
        self._gpu_uuids = own_gpus(settings, self._num_ranks)

    def send_weights(self) -> None:
        """Push every tensor of the source; called on every rank.

        Raises:
            ValueError: packed, and a tensor is larger than the buffer (on every rank).
            Exception: whatever the client raised (sender).
        """
        if self.is_sender:
            self.client.start_weight_update()
        try:
            self._send_packed() if self.packed else self._send_unpacked()
            if self.is_sender:
                self.client.finish_weight_update()
            self._barrier()
        finally:
            # Unpacked tensors stay alive across finish. An error frees them although workers may
            # still map them, as in vLLM.
            self.exporter.release_all()

    def _send_unpacked(self) -> None:
        chunk = PackedChunk()
        handles: list[Handles] = []
        for name, tensor in self.source:
            chunk.append(name, tensor.dtype, tensor.shape, tensor.nbytes)
            handles.append(self._for_own_gpus(self.exporter.reduce(tensor).handle))
        self._update(chunk, self._all_gather_and_merge_handles(handles))

    def _send_packed(self) -> None:
        buffer = self.exporter.allocate(self._settings.buffer_bytes)
        for chunk in ipc_chunks(iter(self.source), buffer.tensor):
            handles = self._all_gather_and_merge_handles([self._for_own_gpus(buffer.handle)])
            self._update(chunk, handles[0], tensor_sizes=chunk.tensor_sizes)
            # Every rank reuses its buffer, and only the sender has waited for the workers.
            self._barrier()

    def _for_own_gpus(self, handle: Mapping[str, Json]) -> Handles:
        return dict.fromkeys(self._gpu_uuids, handle)

    def _all_gather_and_merge_handles(self, handles: list[Handles]) -> list[Handles]:
        """Return, on the sender, one ``{gpu uuid: handle}`` of all ranks for each entry."""
        if self._num_ranks == 1:
            return handles
        gathered = _all_gather_json(handles, self._num_ranks, self._group)
        self._barrier()
        if not self.is_sender:
            return [{} for _ in handles]
        merged: list[Handles] = [{} for _ in handles]
        for rank_handles in gathered:
            for index, entry in enumerate(merged):
                entry.update(rank_handles[index])
        return merged

    def _update(
        self,
        chunk: PackedChunk,
        handles: list[Handles] | Handles,
        tensor_sizes: Sequence[int] | None = None,
    ) -> None:
        if not self.is_sender:
            return
        self._settings.injector.reach("rank.update_call")
        self.client.update_weights(
            {
                "names": chunk.names,
                "dtype_names": [dtype_name(dtype) for dtype in chunk.dtypes],
                "shapes": chunk.shapes,
                "ipc_handles": handles,
                "ipc_handles_pickled": None,
                "tensor_sizes": tensor_sizes,
            }
        )

    def _barrier(self) -> None:
        if self._num_ranks > 1:
            self._barrier_of(self._group)

    def _barrier_of(self, group: dist.ProcessGroup | None) -> None:
        self._settings.injector.reach("rank.barrier")
        self._settings.record("barrier", phase="begin")
        dist.barrier(group)
        self._settings.record("barrier", phase="end")

    def shutdown(self) -> None:
        """Release whatever is still exported. Idempotent."""
        self.exporter.release_all()


def own_gpus(settings: ChannelSettings, world_size: int) -> list[str]:
    """Return the GPUs that this rank exports for: those of the engine workers beside it."""
    if (slot := settings.slot) is not None:
        place = slot.ranks.index(settings.rank)
        return [f"GPU-{number}" for number in slot.gpus[place::world_size]]
    num_gpus = max(settings.total_workers, world_size)
    return [f"GPU-{number}" for number in range(settings.rank, num_gpus, world_size)]


def _all_gather_json(value: Json, world_size: int, group: dist.ProcessGroup | None) -> list[Json]:
    """Return every rank's value: ``all_gather_object``'s two collectives, without pickling."""
    data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(sizes, torch.tensor([data.numel()]), group=group)
    longest = int(max(size.item() for size in sizes))
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: data.numel()] = data
    gathered = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(gathered, padded, group=group)
    return [
        json.loads(bytes(part[: int(size.item())].tolist()))
        for part, size in zip(gathered, sizes, strict=True)
    ]


def open_ipc(
    settings: ChannelSettings, client: WeightSyncClient, source: WeightSource
) -> IpcTrainerEngine:
    """Return a trainer engine with an open channel (vLLM's ``trainer_init``); on every rank.

    There is no rendezvous: the sender only tells the engines whether it packs.
    """
    engine = IpcTrainerEngine(settings, client, source)
    if engine.is_sender:
        client.init_weight_transfer_engine({"packed": settings.packed})
    return engine
