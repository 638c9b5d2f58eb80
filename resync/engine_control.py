"""Control of one inference engine: its requests, each with a total time-out, and its last event.

The engine's session rules are vLLM's (``v1/worker/gpu_worker.py``, ``entrypoints/rl/online``):
``start`` is refused while a session is open, there is no abort, and ``finish`` commits whatever was
loaded. What an engine needs next therefore follows from the last event known of it, which is kept
here (`Session`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from enum import Enum
from typing import Any

from resync.errors import (
    EngineError,
    EngineLost,
    EngineMismatch,
    EngineRejected,
    EngineTimeout,
)
from resync.observer import Observer, unobserved
from resync.report import Bytes, EngineReport
from resync.timeouts import PushTimeouts
from resync.wire import Answer, Wire, WireError

TEXT_LIMIT = 500  # characters of an engine's answer that an error repeats


class Session(Enum):
    """The last thing known of an engine's update session."""

    UNKNOWN = "unknown"  # found paused, or a start that failed, whether or not it was answered
    CLOSED = "closed"
    OPEN = "open"  # a start succeeded, and so did every update since
    UPDATE_FAILED = "update failed"  # layers may be left half loaded, the session open or ended
    FINISH_FAILED = "finish failed"  # vLLM 0.32 keeps the session open; newer rules end it


class EngineControl:
    """One engine's control plane.

    Args:
        index: number of the engine, from 0.
        url: ``http://host:port``.
        wire: carries the requests; this class bounds each of them as a whole.
        timeouts: the limits.
        observe: hears ``request`` before and after each request.

    Every method raises `EngineRejected` when the engine says no, `EngineTimeout` when no answer
    came within the limit, and `EngineLost` when the connection failed.
    """

    def __init__(
        self,
        *,
        index: int,
        url: str,
        wire: Wire,
        timeouts: PushTimeouts,
        observe: Observer = unobserved,
    ) -> None:
        self.index = index
        self.url = url.rstrip("/")
        self.num_workers = 1
        self.session = Session.UNKNOWN
        self.session_is_draft = False
        self.bytes = Bytes.UNCHANGED
        self.label: str | None = None
        self.expected_labels: frozenset[str] = frozenset()
        self.paused: bool | None = None
        self.paused_by_push = False
        self._wire = wire
        self._timeouts = timeouts
        self._observe = observe

    def report(self) -> EngineReport:
        """Return what is known of the engine."""
        return EngineReport(
            index=self.index, bytes=self.bytes, label=self.label, paused=self.paused
        )

    # ---- requests ----

    async def init(self, init_info: Mapping[str, Any]) -> None:
        """Open the engine's end of the channel; replaces a previous one."""
        body = {"init_info": dict(init_info)}
        await self._post("init", "/init_weight_transfer_engine", body, self._timeouts.init_s)

    async def shutdown(self) -> None:
        """Close the engine's end of the channel; refused while a session is open."""
        await self._post("shutdown", "/shutdown_weight_transfer_engine")

    async def pause(self) -> None:
        """Freeze generation, keeping the running requests."""
        self.paused = None
        await self._post("pause", "/pause?mode=keep&clear_cache=false")
        self.paused = True

    async def flush(self) -> None:
        """Drop the prefix cache: its entries were computed with the old weights."""
        await self._post("flush", "/reset_prefix_cache?reset_running_requests=false")

    async def start(self, *, draft: bool = False) -> None:
        """Open a session for the target model, or for the draft model."""
        route = "/start_draft_weight_update" if draft else "/start_weight_update"
        try:
            await self._post("start", route)
        except BaseException:  # refused too: perhaps because a session is open already
            self.session = Session.UNKNOWN
            raise
        self.session, self.session_is_draft = Session.OPEN, draft

    async def update(self, update_info: Any) -> None:
        """Have the engine receive and load tensors into the open session."""
        if self.bytes is not Bytes.STUCK:
            self.bytes = Bytes.DIRTY
        try:
            await self._post("update", "/update_weights", {"update_info": update_info})
        except BaseException:  # a cancelled request too: what it did is not known
            self.session = Session.UPDATE_FAILED
            raise

    async def finish(self) -> None:
        """Close the session and commit what was loaded. Never carries a version.

        A late or repeated finish can thus never publish.
        """
        try:
            await self._post("finish", "/finish_weight_update", {})
        except BaseException:
            self.session = Session.FINISH_FAILED
            raise
        self.session = Session.CLOSED

    async def publish(self, version: str) -> None:
        """Set the engine's weight version."""
        await self._post("publish", "/update_weight_version", {"new_version": version})

    async def version(self) -> str:
        """Return the engine's weight version, and keep it as ``label``."""
        answer = await self._get("version", "/weight_info")
        label = answer.get("weight_version")
        if not isinstance(label, str):
            raise EngineMismatch(
                self.index, "version", f"expected a weight_version, found {answer!r}"
            )
        self.label = label
        return label

    async def is_paused(self) -> bool:
        """Return whether generation is paused."""
        answer = await self._get("is_paused", "/is_paused")
        paused = answer.get("is_paused")
        if not isinstance(paused, bool):
            raise EngineMismatch(self.index, "is_paused", f"expected is_paused, found {answer!r}")
        self.paused = paused
        return paused

    async def resume(self) -> None:
        """Resume generation."""
        self.paused = None
        await self._post("resume", "/resume")
        self.paused = False

    async def probe(self) -> None:
        """Ask every worker the same harmless question, and compare the answers.

        The question cannot fail in a worker, so the probe leaves no unread reply behind. A worker
        that answers an earlier call (vLLM 0.32 shifts replies after a failed call at more than one
        worker, until the engine restarts) gives itself away.
        """
        answer = await self._post("probe", "/collective_rpc", {"method": "get_supported_tasks"})
        results = answer.get("results") or []
        agree = len(results) == self.num_workers and all(
            r is not None and r == results[0] for r in results
        )
        if not agree:
            raise EngineMismatch(
                self.index,
                "probe",
                f"expected {self.num_workers} equal answers from its workers, found {results!r}: "
                "its replies belong to earlier calls. Restart the engine",
            )

    async def world_size(self) -> int:
        """Return the number of workers, and keep it as ``num_workers``."""
        answer = await self._get("world_size", "/get_world_size")
        size = answer.get("world_size")
        if not isinstance(size, int) or size < 1:
            raise EngineMismatch(
                self.index, "world_size", f"expected a world_size of 1 or more, found {answer!r}"
            )
        self.num_workers = size
        return size

    async def look(self) -> tuple[bool, str]:
        """Return whether generation is paused, and the weight version; asked at the same time."""
        paused, label = await asyncio.gather(self.is_paused(), self.version())
        return paused, label

    # ---- what an engine needs next ----

    @staticmethod
    def session_found(*, paused: bool) -> Session:
        """Return what to assume of an engine that is met for the first time.

        A session takes the weights from under generation, so an engine that generates has none
        open and no layer half loaded; one that is paused may have been left in the middle. Where
        an idle engine proves this wrong, its start is refused and the resend cleans it up.
        """
        return Session.UNKNOWN if paused else Session.CLOSED

    async def close_session(self, *, has_draft: bool) -> None:
        """Leave the engine with no session open and no layer half loaded. It must be paused.

        By the last event:

        * closed: nothing.
        * open: finish. After a complete load it commits it, after none it restores the old weights.
        * update failed, or unknown: start, whatever it answers, then finish. The start opens a
          session where the failure ended it and is refused where it did not; the finish then
          closes it either way and resets layers that the failed update left half loaded, which the
          next start would skip otherwise. A finish on its own would leave those layers, and where
          no session is open it is itself a failing call, which shifts replies.
        * finish failed: finish again, which succeeds where the session was kept; else as above.
        """
        if self.session is Session.CLOSED:
            return
        if self.session is Session.OPEN:
            await self.finish()
            return
        if self.session is Session.FINISH_FAILED:
            with contextlib.suppress(EngineRejected):
                await self.finish()
                return
        unknown = self.session is Session.UNKNOWN
        drafts = (False, True) if unknown and has_draft else (self.session_is_draft,)
        for draft in drafts:
            await self._flush_session(draft=draft)

    async def _flush_session(self, *, draft: bool) -> None:
        refusal = None
        try:
            await self.start(draft=draft)
        except EngineRejected as error:  # because a session is open still: finish that one
            refusal = error
        try:
            await self.finish()
        except EngineRejected as error:
            if refusal is None:
                raise
            raise EngineMismatch(
                self.index,
                "close",
                "expected a session that can be closed or opened, found neither: "
                f"{refusal}; {error}",
            ) from error

    async def require_paused(self, action: str) -> None:
        """Check that generation is paused: opening a session takes the weights from under it.

        Raises:
            EngineMismatch: it is running.
        """
        if not await self.is_paused():
            raise self.found_running(action)

    def found_running(self, action: str) -> EngineMismatch:
        """Return the error for an engine that generates in the middle of a push."""
        self.session = Session.UNKNOWN
        return EngineMismatch(
            self.index,
            action,
            "expected generation to be paused, found it running: the engine was restarted or "
            "somebody resumed it during the push",
        )

    # ---- the wire ----

    async def _get(self, action: str, path: str) -> dict[str, Any]:
        return await self._request(action, "GET", path, None, self._timeouts.request_s)

    async def _post(
        self, action: str, path: str, body: Any = None, limit_s: float | None = None
    ) -> dict[str, Any]:
        limit_s = self._timeouts.request_s if limit_s is None else limit_s
        return await self._request(action, "POST", path, body, limit_s)

    async def _request(
        self, action: str, method: str, path: str, body: Any, limit_s: float
    ) -> dict[str, Any]:
        """Make one request under a total time-out and return its JSON object ({} if empty)."""
        begun_s = time.monotonic()
        details = {"engine": self.index, "action": action, "limit_s": limit_s}
        self._observe("request", phase="begin", **details)
        ok = False
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._wire.request(method, self.url + path, body)
            fields = self._fields(action, answer)
            ok = True
            return fields
        except TimeoutError:
            raise EngineTimeout(
                self.index,
                action,
                f"expected an answer within {limit_s:g} s, found none. The engine may still carry "
                "the request out",
            ) from None
        except WireError as error:
            raise EngineLost(self.index, action, f"no answer from {self.url}: {error}") from error
        finally:
            seconds = round(time.monotonic() - begun_s, 6)
            self._observe("request", phase="end", ok=ok, seconds=seconds, **details)

    def _fields(self, action: str, answer: Answer) -> dict[str, Any]:
        if answer.status != 200:
            text = answer.text[:TEXT_LIMIT]
            raise EngineRejected(self.index, action, answer.status, text)
        if not answer.content:
            return {}
        try:
            fields = json.loads(answer.content)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise EngineMismatch(
                self.index, action, f"expected a JSON object, found {answer.text[:TEXT_LIMIT]!r}"
            )
        return fields


def engine_errors(outcomes: list[BaseException | None]) -> list[EngineError]:
    """Return the failures of a fan-out. An exception that is no engine's is raised as it is."""
    failures = []
    for outcome in outcomes:
        if isinstance(outcome, EngineError):
            failures.append(outcome)
        elif outcome is not None:
            raise outcome
    return failures
