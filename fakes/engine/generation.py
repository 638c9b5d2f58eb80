"""Completions whose tokens depend on the weights, and the scheduler's three pause states.

A token is a function of the prompt, its index and the bytes of the weights at that step, so torn
or stale weights show in what is served.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, get_args

from fakes import model_spec
from fakes.engine.worker import Worker
from harness.contracts import Recorder

PauseMode = Literal["abort", "wait", "keep"]
PAUSE_MODES: tuple[str, ...] = get_args(PauseMode)


class PauseState(Enum):
    """vLLM's ``PauseState``: admit and step; step what runs; freeze."""

    UNPAUSED = 0
    PAUSED_NEW = 1
    PAUSED_ALL = 2


def token_at(prompt: str, index: int, fingerprint: str) -> int:
    """Return token ``index`` of the completion of ``prompt`` under weights of that fingerprint.

    Args:
        prompt: the prompt as text; token ids are given as their JSON.
        index: from 0.
        fingerprint: `fakes.model_spec.fingerprint` of all workers' checksums.

    Returns:
        A token id, from 0 to ``model_spec.TINY.vocab - 1``.
    """
    digest = hashlib.sha256(f"{fingerprint}\n{index}\n{prompt}".encode()).digest()
    return digest[0] % model_spec.TINY.vocab


@dataclass(eq=False)
class Completion:
    """One request that is waiting or running.

    ``finished`` resolves to the finish reason, or raises what killed the engine.
    """

    request_id: str
    prompt: str
    max_tokens: int
    finished: asyncio.Future[str]
    tokens: list[int] = field(default_factory=list)
    holds_cache: bool = False

    def end(self, reason: str) -> None:
        if not self.finished.done():
            self.finished.set_result(reason)


class Scheduler:
    """The requests of one engine core. Used under the core's queue only."""

    def __init__(self, record: Recorder) -> None:
        self.pause_state = PauseState.UNPAUSED
        self._record = record
        self._waiting: list[Completion] = []
        self._running: list[Completion] = []

    @property
    def paused(self) -> bool:
        return self.pause_state is not PauseState.UNPAUSED

    @property
    def requests(self) -> list[Completion]:
        """Every request that has not ended."""
        return [*self._running, *self._waiting]

    def has_work(self) -> bool:
        """Whether a step would produce a token; a pause is complete when it would not."""
        if self.pause_state is PauseState.PAUSED_ALL:
            return False
        return bool(self._running or (not self.paused and self._waiting))

    def add(self, request: Completion) -> None:
        """Queue a request; a paused engine lets it wait."""
        self._waiting.append(request)

    def step(self, fingerprint: str, version: str) -> None:
        """Give every running request one token from weights of that fingerprint."""
        if not self.paused:
            self._running.extend(self._waiting)
            self._waiting.clear()
        for request in list(self._running):
            index = len(request.tokens)
            token = token_at(request.prompt, index, fingerprint)
            request.tokens.append(token)
            request.holds_cache = True
            self._record(
                "token",
                request=request.request_id,
                index=index,
                token=token,
                fingerprint=fingerprint,
                version=version,
            )
            if len(request.tokens) >= request.max_tokens:
                self._running.remove(request)
                request.end("length")

    def abort(self, request_ids: Sequence[str] | None = None) -> int:
        """End the named requests, or all of them, with reason ``abort``; return how many."""
        aborted = [
            request
            for request in self.requests
            if request_ids is None or request.request_id in request_ids
        ]
        for request in aborted:
            (self._running if request in self._running else self._waiting).remove(request)
            request.end("abort")
        return len(aborted)

    def fail(self, error: Exception) -> None:
        """End every request with an error: the engine is dead."""
        for request in self.requests:
            if not request.finished.done():
                request.finished.set_exception(error)
        self._running.clear()
        self._waiting.clear()

    def reset_prefix_cache(self, *, reset_running_requests: bool) -> bool:
        """Clear the cache; return false where running requests still hold blocks of it."""
        if reset_running_requests:
            for request in self.requests:
                request.holds_cache = False
        return not any(request.holds_cache for request in self.requests)


class ServedWeights:
    """The weights that a forward pass reads, named by one cheap fingerprint."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._epochs: tuple[int, ...] = ()
        self._fingerprint = ""

    @property
    def on_meta(self) -> bool:
        """Whether a forward pass would meet a parameter without storage, and die of it."""
        return any(model.is_meta for worker in self._workers for model in worker.models)

    def checksums(self, *, draft: bool = False) -> dict[str, str]:
        """Return the checksums of all workers' target (or draft) models; empty without a draft.

        Raises:
            NotImplementedError: a parameter is on the meta device.
        """
        checksums: dict[str, str] = {}
        for worker in self._workers:
            model = worker.draft if draft else worker.model
            if model is not None:
                checksums.update(model.checksums())
        return checksums

    def fingerprint(self) -> str:
        """Return the fingerprint of the target model's bytes; computed once per change.

        Raises:
            NotImplementedError: a parameter is on the meta device.
        """
        epochs = tuple(worker.model.epoch for worker in self._workers)
        if epochs != self._epochs:
            self._fingerprint = model_spec.fingerprint(self.checksums())
            self._epochs = epochs
        return self._fingerprint
