"""Runs one RPC on every worker of an engine, with vLLM's reply queues and their reply shift.

A reply carries no call id, and a call that fails stops reading at the first failure. The replies
that it leaves unread are taken for those of the next call. That is vLLM's behaviour, kept to the
letter: what a status code means after one failed request is what the harness tests.

Source: vLLM 0.32, ``v1/executor/multiproc_executor.py`` (``collective_rpc``).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fakes.engine.worker import Worker

RING_SLOTS = 10  # unread replies that a worker can leave before it blocks


@dataclass(frozen=True)
class Reply:
    """One worker's answer; ``value`` is the error's text where ``ok`` is false."""

    ok: bool
    value: Any


@dataclass(frozen=True)
class Call:
    """One RPC on its way to a worker."""

    method: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class WorkerThread:
    """The thread that stands for one worker process: a queue in, a ring of replies out."""

    def __init__(self, worker: Worker, notify: Callable[[], None]) -> None:
        self.worker = worker
        self.busy: str | None = None  # the RPC that runs, or waits for room in the ring
        self._notify = notify
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._replies: deque[Reply] = deque()
        self._room = threading.Condition()
        self._submitted = self._done = 0
        self._thread: threading.Thread | None = None

    @property
    def backlog(self) -> int:
        """Number of replies that nobody has read."""
        return len(self._replies)

    @property
    def idle(self) -> bool:
        return self._done == self._submitted

    def has_reply(self) -> bool:
        """Whether a reply can be taken, whichever call it belongs to."""
        return bool(self._replies)

    def submit(self, call: Call) -> None:
        """Queue one RPC; the thread starts with the first."""
        self._submitted += 1
        self._calls.put(call)
        if self._thread is None:
            name = f"worker-{self.worker.rank}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def leave(self) -> None:
        """End the thread once it has run what was submitted; an engine's process just dies."""
        self._calls.put(None)

    def take(self) -> Reply:
        """Return the oldest unread reply, whichever call it belongs to."""
        with self._room:
            self._room.notify()
            return self._replies.popleft()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            self.busy = call.method
            reply = self._answer(call)
            with self._room:
                self._room.wait_for(lambda: len(self._replies) < RING_SLOTS)
                self._replies.append(reply)
            self.busy = None
            self._done += 1
            self._notify()

    def _answer(self, call: Call) -> Reply:
        try:
            return Reply(True, self.worker.call(call.method, call.args, call.kwargs))
        except Exception as error:
            return Reply(False, str(error))


class Executor:
    """All workers of one engine. One caller at a time: the engine core's queue sees to that.

    The workers' threads never block the event loop; a worker that hangs blocks its caller only.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.threads = [WorkerThread(worker, self._notify) for worker in workers]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def workers(self) -> list[Worker]:
        return [thread.worker for thread in self.threads]

    async def collective_rpc(
        self,
        method: str,
        timeout_s: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Run ``method`` on every worker and return one reply per rank, oldest unread first.

        Raises:
            RuntimeError: the reply that was read from some rank is a failure.
            TimeoutError: a rank had no reply within ``timeout_s`` of the call.
        """
        self._loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        for thread in self.threads:
            thread.submit(Call(method, args, kwargs or {}))
        results = []
        for thread in self.threads:
            try:
                await self._until(thread.has_reply, deadline)
            except TimeoutError as error:
                raise TimeoutError(f"RPC call to {method} timed out.") from error
            reply = thread.take()
            if not reply.ok:
                raise RuntimeError(
                    f"Worker failed with error '{reply.value}', please check the"
                    " stack trace above for the root cause"
                )
            results.append(reply.value)
        return results

    async def drain(self) -> None:
        """Wait until every worker has run all that was submitted, as a forward pass must."""
        await self._until(lambda: all(thread.idle for thread in self.threads), None)

    async def _until(self, ready: Callable[[], bool], deadline: float | None) -> None:
        while not ready():
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None if deadline is None else loop.call_at(deadline, self._expire, self._waiter)
            try:
                await self._waiter
            finally:
                if timer is not None:
                    timer.cancel()

    def _expire(self, waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_exception(TimeoutError())

    def _notify(self) -> None:
        """Wake the caller up; called in a worker's thread."""
        assert self._loop is not None, "a worker's thread starts with the first call"
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
