"""The named places where a scenario may strike. A new one is a line here and a call of `reach`.

``engine.*`` points are HTTP exchanges at an engine's front end; ``worker.*`` and ``rank.*`` points
are reached in the thread of an engine's worker or of a trainer rank. Push 0 is the connect before
the first push.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal


@dataclass(frozen=True)
class FaultPoint:
    """One place where a fault may strike.

    Attributes:
        name: ``role.step``.
        narrowed_by: the keys of ``where`` that a scenario may select on, besides the engine or
            rank itself.
        reached: one line that says when; read by authors of scenarios.
        transport: the one that reaches it; ``None`` where both do.
        by: the ranks that reach it; ``None`` where all do.
    """

    name: str
    narrowed_by: tuple[str, ...]
    reached: str
    transport: Literal["ipc", "nccl"] | None = None
    by: Literal["sender"] | None = None

    @property
    def role(self) -> str:
        """``engine`` (a request), ``worker`` or ``rank`` (a thread)."""
        return self.name.partition(".")[0]


_SESSION = ("session",)
_WORKER = ("worker", "session")
_WORKER_TENSOR = ("worker", "session", "tensor")

_of_nccl_sender = partial(FaultPoint, transport="nccl", by="sender")

_ALL = (
    # Requests, as the front end of an engine receives them.
    FaultPoint("engine.init", (), "POST /init_weight_transfer_engine: the channel is being built"),
    FaultPoint("engine.shutdown", (), "POST /shutdown_weight_transfer_engine"),
    FaultPoint("engine.start", _SESSION, "POST /start_weight_update or /start_draft_weight_update"),
    FaultPoint("engine.update", _SESSION, "POST /update_weights; on packed IPC once per chunk"),
    FaultPoint("engine.finish", _SESSION, "POST /finish_weight_update"),
    FaultPoint("engine.publish", (), "POST /update_weight_version: the push becomes visible"),
    FaultPoint("engine.version", (), "GET /weight_info: the version is read back"),
    FaultPoint("engine.checksum", (), "POST /weight_checker"),
    FaultPoint("engine.pause", (), "POST /pause"),
    FaultPoint("engine.resume", (), "POST /resume"),
    FaultPoint("engine.is_paused", (), "GET /is_paused"),
    FaultPoint("engine.flush", (), "POST /reset_prefix_cache"),
    FaultPoint("engine.sleep", (), "POST /sleep"),
    FaultPoint("engine.wake_up", (), "POST /wake_up"),
    FaultPoint("engine.probe", (), "POST /collective_rpc: one answer per worker"),
    FaultPoint("engine.world_size", (), "GET /get_world_size: asked once, at connect"),
    FaultPoint("engine.health", (), "GET /health"),
    FaultPoint("engine.completion", (), "POST /v1/completions: the request load"),
    # Inside an engine, in the thread of one worker.
    FaultPoint("worker.init", ("worker",), "the worker joins the channel"),
    FaultPoint("worker.pause", ("worker",), "paused already, the worker waits for its device"),
    FaultPoint("worker.start", _WORKER, "the worker opens its session"),
    FaultPoint("worker.receive", _WORKER_TENSOR, "before each tensor (packed: chunk) arrives"),
    FaultPoint("worker.load", _WORKER_TENSOR, "a tensor has arrived and is about to be loaded"),
    FaultPoint("worker.finish", _WORKER, "the worker closes its session"),
    # On a trainer rank, in its own thread.
    FaultPoint("rank.engines", (), "the rank is about to connect to the engines it was told of"),
    _of_nccl_sender("rank.bind", (), "just before it binds the rendezvous port"),
    _of_nccl_sender("rank.rendezvous", (), "the engines were asked to join, it is next"),
    FaultPoint("rank.gather", ("tensor",), "before each gather of a tensor's shards"),
    _of_nccl_sender("rank.broadcast", ("tensor",), "it is about to broadcast"),
    FaultPoint("rank.update_call", (), "it is about to ask the engines to receive", by="sender"),
    _of_nccl_sender("rank.update_sent", (), "the update is on its way; it looks once"),
    FaultPoint("rank.barrier", (), "before a barrier of the send loop", transport="ipc"),
    FaultPoint("rank.step", ("name",), "the target under test reports a step, such as agree.start"),
)

FAULT_POINTS = {point.name: point for point in _ALL}
