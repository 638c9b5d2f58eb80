"""The trainer's end of an NCCL channel, in vLLM's shape, call order and threads.

Source: ``NCCLTrainerWeightTransferEngine`` of vLLM 0.32 (``weight_transfer/nccl_engine.py``).
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from fakes.data_plane.nccl_like import NcclLikeCommunicator
from fakes.data_plane.packing import dtype_name, nccl_chunks
from fakes.send_loops.protocols import ParamMeta, WeightSource, WeightSyncClient
from fakes.send_loops.settings import ChannelSettings
from harness.contracts import Json

ADDRESS = "127.0.0.1"
PORTS = (10_000, 32_768)  # below those that Linux gives to whoever asks for any
_SENDER_RANK = 0  # group rank; the workers follow it


class NcclTrainerEngine:
    """Sends weights by broadcast; made by `open_nccl`.

    Attributes:
        client: the engines' control plane.
        source: the weights.
        is_sender: whether this rank is the one that talks to the engines.
        packed: whether tensors share buffers.
        model_update_group: the communicator; ``None`` on other ranks, before the channel is open
            and after `shutdown`.
    """

    def __init__(
        self, settings: ChannelSettings, client: WeightSyncClient, source: WeightSource
    ) -> None:
        self.client = client
        self.source = source
        self.is_sender = settings.is_sender
        self.packed = settings.packed
        self.model_update_group: NcclLikeCommunicator | None = None
        self._settings = settings

    def open(self) -> None:
        """Join the workers in a fresh group, on the sender; nothing on other ranks.

        The engines are asked to join on a side thread while this one serves the rendezvous. The
        side thread is joined on every way out, so a rendezvous that fails here still waits for
        the engines' answer, as in vLLM.
        """
        if not self.is_sender:
            return
        settings = self._settings
        port = free_port()
        settings.injector.reach("rank.bind", port=port)
        world_size = settings.num_members(self.client)
        init_info: dict[str, Json] = {
            "master_address": ADDRESS,
            "master_port": port,
            "rank_offset": 1,
            "world_size": world_size,
            "packed": settings.packed,
            "packed_buffer_size_bytes": settings.buffer_bytes,
            "packed_num_buffers": settings.num_buffers,
        }
        with ThreadPoolExecutor(max_workers=1) as executor:
            future = executor.submit(self.client.init_weight_transfer_engine, init_info)
            settings.injector.reach("rank.rendezvous")
            self.model_update_group = NcclLikeCommunicator(
                master_address=ADDRESS,
                master_port=port,
                rank=_SENDER_RANK,
                world_size=world_size,
                rendezvous_s=settings.rendezvous_s,
                record=settings.record,
            )
            future.result()

    def send_weights(self) -> None:
        """Push every tensor of the source; called on every rank.

        Other ranks than the sender only iterate, and succeed whatever the engines said.

        Raises:
            ValueError: the source's iteration disagrees with its metadata (sender).
            Exception: whatever the client raised (sender).
        """
        metadata = self.source.metadata()
        if not self.is_sender:
            for _ in self.source:
                pass
            return
        update_info: dict[str, Json] = {
            "names": [meta.name for meta in metadata],
            "dtype_names": [dtype_name(meta.dtype) for meta in metadata],
            "shapes": [list(meta.shape) for meta in metadata],
        }
        self.client.start_weight_update()
        executor = ThreadPoolExecutor(max_workers=1)
        try:
            future = executor.submit(self._update, update_info)
            self._settings.injector.reach("rank.update_sent")
            if future.done():
                future.result()
            self._broadcast(metadata)
            future.result()
        finally:
            # Never joined here: the workers may be blocked in a broadcast that will never come.
            executor.shutdown(wait=False)
        self.client.finish_weight_update()
        if self.model_update_group is not None:
            self.model_update_group.synchronize()

    def _update(self, update_info: dict[str, Json]) -> None:
        self._settings.injector.reach("rank.update_call")
        self.client.update_weights(update_info)

    def _broadcast(self, metadata: Sequence[ParamMeta]) -> None:
        group = self.model_update_group
        assert group is not None, "trainer_init() must be called before _broadcast()."
        pairs = checked_iter(self.source, metadata)
        if self.packed:
            self._broadcast_packed(group, pairs)
        else:
            for name, tensor in pairs:
                self._settings.injector.reach("rank.broadcast", tensor=name)
                group.broadcast(tensor.contiguous(), src=_SENDER_RANK)

    def _broadcast_packed(
        self, group: NcclLikeCommunicator, pairs: Iterator[tuple[str, torch.Tensor]]
    ) -> None:
        slots = [0] * self._settings.num_buffers  # operation that last used each buffer
        chunks = nccl_chunks(pairs, buffer_bytes=self._settings.buffer_bytes)
        turn = 0
        while True:
            # A buffer must have been sent before its next chunk is gathered.
            group.synchronize(slots[turn])
            item = next(chunks, None)
            if item is None:
                break
            chunk, packed = item
            self._settings.injector.reach("rank.broadcast", tensor=chunk.names[0])
            slots[turn] = group.broadcast(packed, src=_SENDER_RANK)
            turn = (turn + 1) % len(slots)
        for operation in slots:
            group.synchronize(operation)

    def shutdown(self) -> None:
        """Abort the communicator on this side. Idempotent."""
        if self.model_update_group is not None:
            self.model_update_group.destroy()
            self.model_update_group = None


def checked_iter(
    source: WeightSource, metadata: Sequence[ParamMeta]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the source's pairs, each checked against what the workers were told to expect.

    Raises:
        ValueError: they disagree, with vLLM's texts.
    """
    sent = 0
    for name, tensor in source:
        if sent >= len(metadata):
            raise ValueError(
                f"WeightSource yielded more parameters than metadata() "
                f"declared ({len(metadata)}); first extra is {name!r}."
            )
        expected = metadata[sent]
        found = (name, tensor.dtype, tuple(tensor.shape))
        if found != (expected.name, expected.dtype, expected.shape):
            raise ValueError(
                "WeightSource metadata() disagrees with iteration at index "
                f"{sent}: declared {expected.name!r} "
                f"{expected.dtype} {tuple(expected.shape)}, got {name!r} "
                f"{tensor.dtype} {tuple(tensor.shape)}. Both channels must "
                "enumerate the same parameters in the same order."
            )
        sent += 1
        yield name, tensor
    if sent != len(metadata):
        raise ValueError(
            f"WeightSource yielded {sent} parameters but metadata() "
            f"declared {len(metadata)}; the worker is waiting for the rest."
        )


def open_nccl(
    settings: ChannelSettings, client: WeightSyncClient, source: WeightSource
) -> NcclTrainerEngine:
    """Return a trainer engine with an open channel (vLLM's ``trainer_init``); on every rank.

    Raises:
        OSError: the port was taken between choosing and binding it.
        Exception: the rendezvous failed, or whatever the client raised.
    """
    engine = NcclTrainerEngine(settings, client, source)
    engine.open()
    return engine


def free_port() -> int:
    """Return a port that was free a moment ago: the race is vime's own, kept on purpose.

    But for the scenarios beside this one nobody else runs it: the port is below those that the
    kernel gives to whoever asks for any, as each of gloo's listeners does.
    """
    candidates = random.SystemRandom()  # not the state that all forks share
    while True:
        port = candidates.randrange(*PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((ADDRESS, port))
            except OSError:
                continue
            return port
