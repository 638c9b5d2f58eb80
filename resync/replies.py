"""Whose answer is this? What a status means on an engine of several workers.

vLLM 0.32 reads one reply of each worker per call, rank by rank, and stops at the first failure. A
reply carries no number, so those that it left unread are taken for the answers to later calls,
until the engine is restarted: after one failed request, worker r's answer to a call is read some
calls later. How many is the worker's backlog. It never shrinks, and it grows by one with each
failure that is read from a lower rank.

Hence, with a backlog of b on the worker that is furthest behind:

* An operation is done when it and b calls after it that do nothing have succeeded. Until then a
  worker may still be at it, so a shared buffer may not be reused either.
* A failure that one of those calls brings to light is the operation's.
* After a failure the replies are read until b calls in a row have succeeded: then every reply to an
  operation has been read, and what is left unread is known to say nothing.
* Nothing that may fail is asked in order to find something out. A call that cannot fail tells the
  backlog: its answer is unlike that of a call that does nothing, and turns up b calls later.

An engine of one worker has no backlog, and none of this costs it a request.

Source: vLLM 0.32, ``v1/executor/multiproc_executor.py`` (``collective_rpc``).
"""

from __future__ import annotations

import time
from typing import Any

from resync.errors import EngineMismatch, EngineNeedsRestart, EngineRejected, EngineTimeout
from resync.line import Line

RPC = "/collective_rpc"
NO_OP = {"method": "check_health"}  # a worker answers null
TASKS = {"method": "get_supported_tasks"}  # a worker answers something, the same on every one

# Unread replies that a worker's ring holds. With one more it waits for room before it goes on, so
# the next forward pass never comes back.
RING_SLOTS = 10
# Past this an engine gets no more weights. Two slots are kept: one for the failed request of a push
# that is under way, which must still be closed, and one for somebody else's.
MAX_BACKLOG = RING_SLOTS - 2

FROM_A_WORKER = "Worker failed with error"  # how the executor begins what a worker raised


class Replies:
    """The replies of one engine's workers.

    Attributes:
        num_workers: of the engine.
        backlog: unread replies of each worker, by rank; ``None`` where it has to be found out.
        num_refused: workers that the last operation failed on; ``None`` where that is not known.
    """

    def __init__(self, line: Line) -> None:
        self.line = line
        self.num_workers = 1
        self.backlog: tuple[int, ...] | None = None
        self.num_refused: int | None = None

    def forget(self) -> None:
        """The engine may be another one: find its backlog out before the next operation."""
        self.backlog = None

    async def operate(
        self, action: str, path: str, body: Any = None, limit_s: float | None = None
    ) -> None:
        """Have every worker do something, and return when every worker has done it.

        Args:
            action: what an error calls it.
            path: of the request, a POST.
            body: of the request.
            limit_s: for all of it, the calls that do nothing included.

        Raises:
            EngineRejected: the engine, or a worker, said no. The other workers have ended, or were
                given up ``settle_s`` after it.
            EngineNeedsRestart: the replies are too far behind to be told apart.
        """
        limit_s = self.line.timeouts.request_s if limit_s is None else limit_s
        self.num_refused = None
        if self.num_workers == 1:
            await self.line.post(action, path, body, limit_s)
            return
        await self.line.until_idle(action)
        ends_s = time.monotonic() + limit_s
        backlog = self.backlog or await self._measure(action, ends_s)
        self.backlog = None  # unknown, should what follows not return
        reading = _Reading(self.line, action, ends_s)
        try:
            await reading.call(action, path, body)
            await reading.until_told(max(backlog))
            if reading.failures:
                backlog = await reading.measure(self.num_workers)
        except EngineTimeout as error:
            raise _untold(reading, error) from error
        self.backlog = backlog
        if reading.failures:
            self.num_refused = sum(FROM_A_WORKER in error.text for error in reading.failures)
            raise reading.failures[0]

    async def verify(self) -> None:
        """Check that the replies are as far behind as was reckoned with.

        Raises:
            EngineMismatch: they are not: somebody else's request has failed meanwhile, and what was
                believed of this push may have been said of another call.
        """
        if self.num_workers == 1:
            await self._verify_one()
            return
        believed, self.backlog = self.backlog, None
        ends_s = time.monotonic() + self.line.timeouts.request_s
        if believed is None:
            await self._measure("probe", ends_s)
            return
        self.backlog = await _Reading(self.line, "probe", ends_s).measure(self.num_workers)
        if self.backlog != believed:
            raise EngineMismatch(
                self.line.index,
                "probe",
                f"expected replies {_behind(believed)}, found {_behind(self.backlog)}: somebody "
                "else's request has failed, and what the workers said may belong to other calls",
            )

    async def _verify_one(self) -> None:
        results = _results(await self.line.post("probe", RPC, TASKS))
        if len(results) != 1 or results[0] is None:
            raise EngineMismatch(
                self.line.index,
                "probe",
                f"expected one answer from its worker, found {results!r}: its replies belong to "
                "earlier calls. Restart the engine",
            )

    async def require_room(self, action: str) -> None:
        """Check that the engine can take one more failure; costs nothing while it can.

        Raises:
            EngineNeedsRestart: a worker has too many unread replies.
        """
        if self.num_workers == 1 or self._has_room():
            return
        await self.line.until_idle(action)
        # Perhaps the engine was restarted since.
        await self._measure(action, time.monotonic() + self.line.timeouts.request_s)
        if not self._has_room():
            assert self.backlog is not None
            raise EngineNeedsRestart(
                self.line.index,
                action,
                f"expected at most {MAX_BACKLOG} unread replies of a worker, found replies "
                f"{_behind(self.backlog)}: after some more failures a worker would wait for room "
                "for ever. Restart the engine",
            )

    def _has_room(self) -> bool:
        return self.backlog is not None and max(self.backlog) <= MAX_BACKLOG

    async def _measure(self, action: str, ends_s: float) -> tuple[int, ...]:
        """Find the backlog out, whatever the unread replies say; they are of no use to anybody."""
        self.backlog = None
        earlier = _Reading(self.line, action, ends_s)
        await earlier.until_told(RING_SLOTS)
        self.backlog = await _Reading(self.line, action, ends_s).measure(self.num_workers)
        return self.backlog


class _Reading:
    """The calls that make up one operation, until ``ends_s`` on the monotonic clock.

    Attributes:
        failures: what failed, in the order in which it came to light. After the first, the others
            get ``settle_s``: a worker may wait for ever for one that has failed.
    """

    def __init__(self, line: Line, action: str, ends_s: float) -> None:
        self.action = action
        self.failures: list[EngineRejected] = []
        self._line = line
        self._ends_s = ends_s

    async def call(
        self, action: str, path: str, body: Any, *, calls_late: int = 0
    ) -> dict[str, Any]:
        """Make one call; a refusal is kept in ``failures``, and ``{}`` returned.

        Args:
            action: what the observer hears; errors name the operation.
            path: of the request, a POST.
            body: of the request.
            calls_late: how many calls after the operation this one is; 0 is the operation itself.
        """
        left_s = max(0.0, self._ends_s - time.monotonic())
        try:
            return await self._line.post(action, path, body, left_s)
        except EngineRejected as error:
            late = f" (told {calls_late} requests late, by a worker)" if calls_late else ""
            if not self.failures:
                settled_s = time.monotonic() + self._line.timeouts.settle_s
                self._ends_s = min(self._ends_s, settled_s)
            self.failures.append(
                EngineRejected(error.engine, self.action, error.status, error.text + late)
            )
            return {}

    async def until_told(self, backlog: int) -> None:
        """Make calls that do nothing until every reply to the calls before has been read.

        Args:
            backlog: an upper bound of it, but for what is in ``failures``.
        """
        behind, num_told, num_calls = backlog + len(self.failures), 0, 0
        while num_told < behind:
            num_failures, num_calls = len(self.failures), num_calls + 1
            await self.call("no_op", RPC, NO_OP, calls_late=num_calls)
            num_told += 1
            if len(self.failures) > num_failures:  # one more unread on every worker above it
                behind, num_told = behind + 1, 0

    async def measure(self, num_workers: int) -> tuple[int, ...]:
        """Return each worker's backlog. The unread replies must be known to say nothing.

        Raises:
            EngineRejected: a call failed, which must be somebody else's.
            EngineNeedsRestart: a worker's answer does not turn up.
        """
        found: list[list[Any]] = []  # one list of answers per call
        told: dict[int, int] = {}  # worker -> calls until its answer
        while len(found) <= 2 * RING_SLOTS and len(told) < num_workers:
            num_failures = len(self.failures)
            action, body = ("no_op", NO_OP) if found else ("probe", TASKS)
            fields = await self.call(action, RPC, body, calls_late=len(found))
            if len(self.failures) > num_failures:
                raise self.failures[-1]
            found.append(_results(fields))
            if len(found[-1]) != num_workers:
                break
            for worker, answer in enumerate(found[-1]):
                if answer is not None:
                    told.setdefault(worker, len(found) - 1)
        if len(told) < num_workers:
            raise EngineNeedsRestart(
                self._line.index,
                self.action,
                f"expected an answer from each of {num_workers} workers within {2 * RING_SLOTS} "
                f"requests, found {found!r}: whose they are cannot be told. Restart the engine",
            )
        return tuple(told[worker] for worker in range(num_workers))


def _results(fields: dict[str, Any]) -> list[Any]:
    return fields.get("results") or []


def _behind(backlog: tuple[int, ...]) -> str:
    return f"{' and '.join(map(str, backlog))} calls behind on workers 0 to {len(backlog) - 1}"


def _untold(reading: _Reading, error: EngineTimeout) -> EngineRejected | EngineTimeout:
    """Return the failure that is known already, or that nothing is."""
    if reading.failures:
        return reading.failures[0]
    return EngineTimeout(
        error.engine,
        reading.action,
        "expected an answer of every worker that is its own within the time-out, found none. The "
        "engine may still carry the request out",
    )
