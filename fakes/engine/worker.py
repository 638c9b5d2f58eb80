"""One tensor-parallel worker: its session flag, its models and its end of the data plane.

The texts and the order of the checks are vLLM's, because recovery code reads both.

Source: vLLM 0.32, ``v1/worker/gpu_worker.py`` (``init_weight_transfer_engine`` and below).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fakes.data_plane.payloads import DEFAULT_BUFFER_BYTES
from fakes.data_plane.receivers import WorkerTransfer
from fakes.engine.layers import Model
from fakes.engine.profiles import Profile
from harness.contracts import Injector, Recorder, no_record

NOT_CONFIGURED = (
    "Weight transfer not configured. Please set weight_transfer_config to enable weight transfer."
)
ALREADY_ACTIVE = (
    "start_weight_update called while a weight update is already "
    "active. Call finish_weight_update first."
)
NOT_STARTED = "start_weight_update must be called before update_weights."
NO_MATCHING_START = "finish_weight_update called without a matching start_weight_update."
BUSY_CONNECTION = "Cannot release a trainer connection during a weight update"
NO_DRAFT = "Draft model weight update requested, but no draft model is configured."


class Worker:
    """One worker process of an engine, as a thread.

    Every method named in `RPCS` is run by the worker's own thread only; the attributes may be read
    by any thread.

    Args:
        record: journal of the layers that are on the meta device.
    """

    def __init__(
        self,
        rank: int,
        *,
        model: Model,
        draft: Model | None,
        transfer: WorkerTransfer | None,
        backend: str | None,
        profile: Profile,
        injector: Injector,
        record: Recorder = no_record,
    ) -> None:
        self.rank = rank
        self.model, self.draft = model, draft
        self.active = False
        self.is_draft = False
        self.initialized = False
        self._transfer = transfer
        self._profile = profile
        self._injector = injector
        self._backend = backend
        self._bytes_per_load = _bytes_per_load(backend, {})
        self._target = model
        self._record = record
        self._on_meta: dict[str, tuple[int, int]] = {}  # as it was recorded last

    @property
    def models(self) -> tuple[Model, ...]:
        """The target model, and the draft model where there is one."""
        return (self.model,) if self.draft is None else (self.model, self.draft)

    def pending(self) -> list[dict[str, Any]]:
        """Return what the data plane waits in, from any thread; empty when nothing."""
        return [] if self._transfer is None else self._transfer.pending()

    def call(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run one RPC by name, in the worker's thread.

        Raises:
            AttributeError: no such method; Python's text, as vLLM's `getattr` gives it.
        """
        if method not in RPCS:
            raise AttributeError(f"'Worker' object has no attribute {method!r}")
        try:
            return RPCS[method](self, *args, **kwargs)
        finally:
            self._tell_layers()

    def _tell_layers(self) -> None:
        """Record how many layers of each model are on meta, and of how many, if that has changed.

        A model that is not named has its weights; one with none on meta waits for the finish.
        """
        names = ("target", "draft")
        on_meta = {
            name: (model.num_on_meta, len(model.layers))
            for name, model in zip(names, self.models, strict=False)
            if model.is_meta
        }
        if on_meta != self._on_meta:
            self._on_meta = on_meta
            self._record("layers", worker=self.rank, on_meta=on_meta)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        transfer = self._require_transfer()
        self._reach("worker.init")
        # vLLM takes the wire format before the rendezvous, so a failed re-init keeps it.
        self._bytes_per_load = _bytes_per_load(self._backend, init_info)
        transfer.init(init_info)
        self.initialized = True

    def shutdown_weight_transfer_engine(self) -> None:
        if self.active:
            raise RuntimeError(BUSY_CONNECTION)
        if self._transfer is not None:
            self._transfer.shutdown()
        self.initialized = False

    def start_weight_update(self) -> None:
        self._start(is_draft=False)

    def start_draft_weight_update(self) -> None:
        self._start(is_draft=True)

    def _start(self, *, is_draft: bool) -> None:
        self._require_transfer()
        if self.active:
            raise RuntimeError(ALREADY_ACTIVE)
        try:
            if is_draft:
                if self.draft is None:
                    raise RuntimeError(NO_DRAFT)
                self._target = self.draft
            self._reach("worker.start", is_draft=is_draft)
            self._target.start()
        except BaseException:
            self._fail()
            self._target = self.model
            raise
        self.active, self.is_draft = True, is_draft

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        transfer = self._require_transfer()
        if not self.active:
            raise RuntimeError(NOT_STARTED)
        try:
            info = update_info[self.rank] if isinstance(update_info, list) else update_info
            self._load(transfer, info)
        except BaseException:
            self._fail()
            self.active, self._target = False, self.model
            raise

    def _load(self, transfer: WorkerTransfer, info: dict[str, Any]) -> None:
        names = info.get("names") or ()
        call, num_bytes = self._target.begin_load(), 0
        stream = None
        for index in range(len(names) + 1):
            if index < len(names):
                self._reach("worker.receive", tensor=names[index])
            if stream is None:  # a packed IPC buffer is copied here, so not before it is reached
                stream = iter(transfer.receive(info))
            arrived = next(stream, None)
            if arrived is None:
                return
            name, tensor = arrived
            self._reach("worker.load", tensor=name)
            if num_bytes > self._bytes_per_load:
                call, num_bytes = self._target.begin_load(), 0
            call.load(name, tensor)
            num_bytes += tensor.nbytes

    def finish_weight_update(self) -> None:
        transfer = self._require_transfer()
        if not self.active:
            raise RuntimeError(NO_MATCHING_START)
        try:
            self._reach("worker.finish")
            self._target.finish()
            transfer.finish()
        except BaseException:
            if self._profile.failure_ends_session:
                self._fail()
                self.active, self._target = False, self.model
            raise
        self.active, self._target = False, self.model
        if not self.is_draft:
            self.reset_lora_state()  # if it raises, the session has ended all the same

    def reset_lora_state(self) -> None:
        """Nothing to reset: there are no adapters. It is a step of finish that can fail."""

    def compute_weight_checksums(self) -> dict[str, str]:
        return self.model.checksums()

    def reset_weights(self) -> None:
        self.model.zero()

    def get_supported_tasks(self) -> list[str]:
        """Return what vLLM's worker does, as the front end gets it: a tuple became a list."""
        return ["generate"]

    def synchronize_device(self) -> None:
        """What a pause ends with, after it has taken effect."""
        self._reach("worker.pause")

    def nothing(self, *args: Any, **kwargs: Any) -> None:
        """The RPCs that change no weights: health, caches, sleep."""

    def _fail(self) -> None:
        if self._profile.failure_ends_session:
            self._target.abort()

    def _require_transfer(self) -> WorkerTransfer:
        if self._transfer is None:
            raise RuntimeError(NOT_CONFIGURED)
        return self._transfer

    def _reach(self, point: str, *, is_draft: bool | None = None, **where: Any) -> None:
        draft = self.is_draft if is_draft is None else is_draft
        session = "draft" if draft else "target"
        self._injector.reach(point, worker=self.rank, session=session, **where)


def _bytes_per_load(backend: str | None, init_info: Mapping[str, Any]) -> float:
    """Return how many bytes one call of the model's loader takes; the last tensor may exceed it.

    NCCL calls it once per tensor, or per packed chunk; IPC once per update. The difference decides
    what becomes of a late shard (see `LoadCall`).
    """
    if backend != "nccl":
        return math.inf
    if not init_info.get("packed", False):
        return 0
    size: int = init_info.get("packed_buffer_size_bytes", DEFAULT_BUFFER_BYTES)
    return size


RPCS: Mapping[str, Callable[..., Any]] = {
    "check_health": Worker.nothing,
    "compute_weight_checksums": Worker.compute_weight_checksums,
    "discard": Worker.nothing,
    "finish_weight_update": Worker.finish_weight_update,
    "get_supported_tasks": Worker.get_supported_tasks,
    "init_weight_transfer_engine": Worker.init_weight_transfer_engine,
    "reset_encoder_cache": Worker.nothing,
    "reset_mm_cache": Worker.nothing,
    "reset_weights": Worker.reset_weights,
    "shutdown_weight_transfer_engine": Worker.shutdown_weight_transfer_engine,
    "sleep": Worker.nothing,
    "start_draft_weight_update": Worker.start_draft_weight_update,
    "start_weight_update": Worker.start_weight_update,
    "synchronize_device": Worker.synchronize_device,
    "update_weights": Worker.update_weights,
    "wake_up": Worker.nothing,
}
