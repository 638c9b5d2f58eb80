"""Control of one inference engine: its requests, each with a total time-out, and its last event.

The engine's session rules are vLLM's (``v1/worker/gpu_worker.py``, ``entrypoints/rl/online``):
``start`` is refused while a session is open, there is no abort, and ``finish`` commits whatever was
loaded. What an engine needs next therefore follows from the last event known of it, which is kept
here (`Session`). What an answer means when there are several workers is in ``resync/replies.py``,
and what is not sent while a request may still be carried out in ``resync/line.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from enum import Enum
from typing import Any

from resync.errors import EngineError, EngineMismatch, EngineRejected, EngineStuck
from resync.line import Line
from resync.observer import Observer, unobserved
from resync.replies import Replies
from resync.report import Bytes, EngineReport
from resync.timeouts import PushTimeouts
from resync.wire import Wire

PAUSE = "/pause?mode=keep&clear_cache=false"
# What engines answer to a flush while requests are running or queued: try later.
BUSY = frozenset({400, 409, 425, 429, 503})
FIRST_FLUSH_PAUSE_S = 0.02


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
    came within the limit, `EngineLost` when the connection failed, and `EngineStuck` when the
    engine is to be asked nothing any more. What every worker takes part in (init, shutdown, pause,
    start, update, finish) is done by all of them when the method returns.
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
        self.line = Line(index=index, url=url, wire=wire, timeouts=timeouts, observe=observe)
        self.replies = Replies(self.line)
        self._session = Session.UNKNOWN
        self._num_open: int | None = None  # of several workers, those thought to be in a session
        self.session_is_draft = False
        self.bytes = Bytes.UNCHANGED
        self.label: str | None = None
        self.expected_labels: frozenset[str] = frozenset()
        self.paused: bool | None = None
        self.paused_by_push = False
        self.quarantined: str | None = None  # why; nothing of a push is sent to it then
        self._init_s = timeouts.init_s

    @property
    def session(self) -> Session:
        """The last thing known of its update session."""
        return self._session

    @session.setter
    def session(self, event: Session) -> None:
        self._session, self._num_open = event, None

    @property
    def num_workers(self) -> int:
        """Number of its worker processes; 1 until `world_size` was asked."""
        return self.replies.num_workers

    @property
    def is_stuck(self) -> bool:
        """Whether the engine is asked nothing any more."""
        return self.line.stuck is not None

    def report(self) -> EngineReport:
        """Return what is known of the engine."""
        known = Bytes.STUCK if self.is_stuck else self.bytes
        return EngineReport(
            index=self.index,
            bytes=known,
            label=self.label,
            paused=self.paused,
            quarantined=self.quarantined is not None,
        )

    def forget(self, *, paused: bool) -> None:
        """Take the engine for another process than it was: nothing known of it holds."""
        self.line.late = self.line.stuck = None
        self.replies.forget()
        self.session = self.session_found(paused=paused)
        self.bytes = Bytes.UNCHANGED

    # ---- requests ----

    async def init(self, init_info: Mapping[str, Any]) -> None:
        """Open the engine's end of the channel; replaces a previous one."""
        body = {"init_info": dict(init_info)}
        path = "/init_weight_transfer_engine"
        await self.replies.operate("init", path, body, self._init_s)

    async def shutdown(self) -> None:
        """Close the engine's end of the channel; refused while a session is open."""
        await self.replies.operate("shutdown", "/shutdown_weight_transfer_engine")

    async def pause(self) -> None:
        """Freeze generation, keeping the running requests."""
        self.paused = None
        await self.replies.operate("pause", PAUSE)
        self.paused = True

    async def pause_unheard(self) -> None:
        """Freeze generation of an engine whose replies are too far behind to tell if it worked."""
        await self.line.post("pause", PAUSE)
        self.paused = None

    async def flush(self) -> None:
        """Drop the prefix cache: its entries were computed with the old weights.

        An engine that is busy still is asked again, with back-off, for ``settle_s``.
        """
        pause_s, ends_s = FIRST_FLUSH_PAUSE_S, time.monotonic() + self.line.timeouts.settle_s
        while True:
            try:
                await self.line.post("flush", "/reset_prefix_cache?reset_running_requests=false")
                return
            except EngineRejected as error:
                if error.status not in BUSY or time.monotonic() + pause_s > ends_s:
                    raise
            await asyncio.sleep(pause_s)
            pause_s *= 2

    async def start(self, *, draft: bool = False) -> None:
        """Open a session for the target model, or for the draft model."""
        route = "/start_draft_weight_update" if draft else "/start_weight_update"
        try:
            await self.replies.operate("start", route)
        except BaseException:  # refused too: perhaps because a session is open already
            self._failed(Session.UNKNOWN)
            raise
        self.session, self.session_is_draft = Session.OPEN, draft

    async def update(self, update_info: Any) -> None:
        """Have the engine receive and load tensors into the open session."""
        self.bytes = Bytes.DIRTY
        body = {"update_info": update_info}
        try:
            await self.replies.operate("update", "/update_weights", body)
        except BaseException:  # a cancelled request too: what it did is not known
            self._failed(Session.UPDATE_FAILED)
            raise

    async def finish(self) -> None:
        """Close the session and commit what was loaded. Never carries a version.

        A late or repeated finish can thus never publish.
        """
        try:
            await self.replies.operate("finish", "/finish_weight_update", {})
        except BaseException:
            self._failed(Session.FINISH_FAILED)
            raise
        self.session = Session.CLOSED

    async def publish(self, version: str) -> None:
        """Set the engine's weight version."""
        await self.line.post("publish", "/update_weight_version", {"new_version": version})

    async def version(self) -> str:
        """Return the engine's weight version, and keep it as ``label``."""
        answer = await self.line.get("version", "/weight_info")
        label = answer.get("weight_version")
        if not isinstance(label, str):
            raise EngineMismatch(
                self.index, "version", f"expected a weight_version, found {answer!r}"
            )
        self.label = label
        return label

    async def is_paused(self) -> bool:
        """Return whether generation is paused."""
        answer = await self.line.get("is_paused", "/is_paused")
        paused = answer.get("is_paused")
        if not isinstance(paused, bool):
            raise EngineMismatch(self.index, "is_paused", f"expected is_paused, found {answer!r}")
        self.paused = paused
        return paused

    async def resume(self) -> None:
        """Resume generation."""
        self.paused = None
        await self.line.post("resume", "/resume")
        self.paused = False

    async def probe(self) -> None:
        """Check that the workers' replies are as far behind as they are taken to be.

        Nothing is asked that could fail in a worker, so the probe leaves no unread reply behind.
        """
        await self.replies.verify()

    async def world_size(self) -> int:
        """Return the number of workers, and keep it as ``num_workers``."""
        answer = await self.line.get("world_size", "/get_world_size")
        size = answer.get("world_size")
        if not isinstance(size, int) or size < 1:
            raise EngineMismatch(
                self.index, "world_size", f"expected a world_size of 1 or more, found {answer!r}"
            )
        self.replies.num_workers = size
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

        Where some workers are in the session and some are not, one request that fails on some is
        inevitable, and every worker that it fails on leaves a reply unread on those above it. So
        where most are known to be in it, finish comes first, and where most are not, start does.
        """
        if self.session is Session.CLOSED:
            return
        if self.session is Session.OPEN:
            await self.finish()
            return
        unknown = self.session is Session.UNKNOWN
        finish_failed = finish_first = self.session is Session.FINISH_FAILED
        if self._num_open is not None:
            finish_first = 2 * self._num_open > self.num_workers
        if finish_first:
            with contextlib.suppress(EngineRejected):
                await self.finish()
                if finish_failed:
                    return
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

    def _failed(self, event: Session) -> None:
        """Note that a request failed, and on how many of several workers its session is open.

        Under vLLM 0.32 a failed update ends the session and a failed finish keeps it; under the
        coming rules both end it. What the front end refused changed nothing on any worker.
        """
        self.session = event
        refused, workers = self.replies.num_refused, self.num_workers
        if workers > 1 and refused is not None:
            in_session = {
                Session.UNKNOWN: workers - refused if refused else 0,
                Session.UPDATE_FAILED: workers - refused,
                Session.FINISH_FAILED: refused or workers,
            }
            self._num_open = in_session[event]

    def doubt(self) -> None:
        """Somebody used the open session and failed, or gave up on the way: expect the worst."""
        if self.session is Session.OPEN:
            self.session = Session.UPDATE_FAILED
            self.bytes = Bytes.DIRTY
            self.replies.forget()
            self.line.note_late("update")

    async def require_restarted(self) -> None:
        """Check that a stuck engine was restarted. Nothing is queued on it to find that out.

        Its metrics list weight operations, since it had some; those of a new process do not.

        Raises:
            EngineStuck: it is the old one still.
        """
        if await self.line.in_flight() is not None:
            raise EngineStuck(self.index, "pause", self.line.stuck or "")
        self.forget(paused=True)

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
        self.replies.forget()
        return EngineMismatch(
            self.index,
            action,
            "expected generation to be paused, found it running: the engine was restarted or "
            "somebody resumed it during the push",
        )


def engine_errors(outcomes: list[BaseException | None]) -> list[EngineError]:
    """Return the failures of a fan-out. An exception that is no engine's is raised as it is."""
    failures = []
    for outcome in outcomes:
        if isinstance(outcome, EngineError):
            failures.append(outcome)
        elif outcome is not None:
            raise outcome
    return failures
