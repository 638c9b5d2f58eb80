"""A gloo group of the sender and all workers that behaves as an NCCL communicator does.

Left alone, gloo is too kind: its peers raise within milliseconds of a death. Here, as with NCCL,
a broadcast only enqueues on a stream, no operation has a time-out, the loss of a peer wedges the
stream for ever instead of raising, and `destroy` frees the local side alone.

Source: ``PyNcclCommunicator`` of vLLM 0.32 (``device_communicators/pynccl.py``).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import BroadcastOptions, ProcessGroupGloo

from fakes.data_plane.rendezvous import RendezvousServer, RendezvousStore
from harness.contracts import Json, Recorder, no_record

_NO_TIMEOUT = timedelta(days=365)


@dataclass(frozen=True)
class _Operation:
    """One enqueued broadcast; it keeps its tensor alive."""

    seq: int
    tensor: torch.Tensor
    src: int


class NcclLikeCommunicator:
    """One rank's end of the channel; rank 0 is the sender and serves the rendezvous.

    Making one returns once every rank of the group has joined. Its gloo group is never torn down
    before the process exits: destroying it joins gloo's threads on 10 ms ticks, for ever if one
    is blocked, and closes sockets, which the peers would notice. So each communicator costs its
    process a few threads and sockets for the rest of its life.

    Both ends must give a broadcast the same number of bytes: where NCCL would hang, gloo ends the
    process of a receiver that expects fewer.

    Args:
        master_address: where the sender listens.
        master_port: its port.
        rank: group rank.
        world_size: sender and workers together. A group of one is disabled, as in vLLM.
        rendezvous_s: how long to wait for the others to join, in seconds.
        record: gets ``data_plane`` events.

    Raises:
        OSError: the sender's port is taken.
        dist.DistNetworkError: the sender cannot be reached in time, or has gone.
        dist.DistStoreError: a rank did not come in time.
        RuntimeError: gloo could not connect a peer in time.
    """

    def __init__(
        self,
        *,
        master_address: str,
        master_port: int,
        rank: int,
        world_size: int,
        rendezvous_s: float,
        record: Recorder = no_record,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device = torch.device("cpu")
        self._record = record
        self._who: dict[str, Json] = {
            "role": "receiver" if rank else "sender",
            "rank": rank,
            "world_size": world_size,
        }
        self._changed = threading.Condition()
        self._stream: deque[_Operation] = deque()  # the first is in flight
        self._num_enqueued = 0
        self._num_done = 0
        self._waiting: dict[int, dict[str, Json]] = {}  # key -> what somebody waits in
        self._server: RendezvousServer | None = None
        self.available = world_size > 1
        self.disabled = not self.available
        if self.disabled:
            return
        if rank == 0:
            self._server = RendezvousServer((master_address, master_port))
        try:
            self._group = self._join(master_address, master_port, rendezvous_s)
        except BaseException:
            self.destroy()
            raise

    def _join(self, address: str, port: int, rendezvous_s: float) -> Any:
        store = RendezvousStore((address, port), rendezvous_s=rendezvous_s)
        # torch's stubs leave the options out, and new_group has no way to name a device.
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=rendezvous_s)
        options._threads = 1  # which makes it a stream: operations run in order
        try:
            group: Any = ProcessGroupGloo(store, self.rank, self.world_size, options)
            # As in vLLM: when it is done, everyone has left the rendezvous.
            group.allreduce([torch.zeros(1)]).wait()
        finally:
            store.close()
        _keep_until_exit(group)
        _keep_until_exit(store)  # the group's C++ side points to it
        return group

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> int:
        """Enqueue a broadcast and return at once; a silent no-op when disabled.

        Args:
            tensor: contiguous; sent from ``src``, overwritten elsewhere, some time before
                `synchronize` returns. Kept referenced until then.
            src: group rank of the sender.
            stream: ignored: NCCL runs one communicator's operations in the order of their calls.

        Returns:
            The number of operations enqueued so far: what `synchronize` takes to wait for this
            one, as for a CUDA event recorded after it.
        """
        assert tensor.is_contiguous()
        with self._changed:
            if not self.disabled:
                self._num_enqueued += 1
                self._stream.append(_Operation(self._num_enqueued, tensor, src))
                if len(self._stream) == 1:
                    self._launch()
            return self._num_enqueued

    def synchronize(self, up_to: int | None = None) -> None:
        """Block until operation ``up_to`` (default: everything enqueued) is done.

        There is no time-out. Once `destroy` was called, here or from another thread, it returns
        at once, whatever has become of the operations.
        """
        with self._changed:
            target = self._num_enqueued if up_to is None else up_to
            if self.disabled or self._num_done >= target:
                return
            key = -threading.get_ident()
            self._wait_begins(key, "synchronize", target, 0)
            self._changed.wait_for(lambda: self.disabled or self._num_done >= target)
            self._wait_ends(key)

    def destroy(self) -> None:
        """Abort the local side: frees whoever is in `synchronize` here. Peers do not notice.

        What was in flight stays blocked in gloo's thread, unseen, until the process exits; what
        was enqueued behind it is never sent. Idempotent.
        """
        with self._changed:
            self.available = False
            self.disabled = True
            self._stream.clear()
            self._changed.notify_all()
        if self._server is not None:
            self._server.close()

    def pending(self) -> list[dict[str, Json]]:
        """Return what this rank waits in: the operation in flight and every `synchronize`.

        Each is ``{op, seq, bytes, role, rank, world_size, since}``, ``since`` in seconds on
        ``time.monotonic``. Callable from any thread.
        """
        with self._changed:
            return [] if self.disabled else list(self._waiting.values())

    def _launch(self) -> None:
        """Hand the stream's first operation to gloo. The lock is held."""
        operation = self._stream[0]
        self._wait_begins(operation.seq, "broadcast", operation.seq, operation.tensor.nbytes)
        options = BroadcastOptions()
        options.rootRank = operation.src
        options.timeout = _NO_TIMEOUT
        work = self._group.broadcast([operation.tensor], options)
        work.get_future().add_done_callback(lambda future: self._landed(operation, future))

    def _landed(self, operation: _Operation, future: torch.futures.Future[Any]) -> None:
        """Go on with the next operation; in gloo's own thread."""
        try:
            future.value()
        except Exception:
            # A peer has gone. NCCL does not tell: the stream is wedged until a local abort.
            return
        with self._changed:
            if self.disabled:
                return
            self._wait_ends(operation.seq)
            self._num_done = operation.seq
            self._stream.popleft()
            if self._stream:
                self._launch()
            self._changed.notify_all()

    def _wait_begins(self, key: int, op: str, seq: int, num_bytes: int) -> None:
        waits = {"op": op, "seq": seq, "bytes": num_bytes, **self._who}
        self._record("data_plane", phase="begin", **waits)
        self._waiting[key] = {**waits, "since": time.monotonic()}

    def _wait_ends(self, key: int) -> None:
        waits = self._waiting.pop(key)
        del waits["since"]
        self._record("data_plane", phase="end", **waits)


def _keep_until_exit(object_: Any) -> None:
    """Make an object immortal: not even the interpreter's exit runs its destructor."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(object_))
