"""All engines at once: the fan-out of a control request, and the event loop that runs it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from resync.engine_control import EngineControl, engine_errors
from resync.errors import EngineError, EngineTimeout, FleetError
from resync.observer import Observer, unobserved
from resync.report import EngineReport
from resync.timeouts import PushTimeouts
from resync.wire import HttpWire, Wire

T = TypeVar("T")
Action = Callable[[EngineControl], Awaitable[object]]


class Fleet:
    """A sender's view of the engines that it controls.

    Requests run on one event loop in a thread of its own: a total time-out is then one line and
    cancels the socket, and any thread of the trainer engine may call (vLLM's NCCL engine sends
    ``update_weights`` from a side thread while the main thread broadcasts).

    Args:
        urls: one ``http://host:port`` an engine, by its index.
        timeouts: the limits.
        wire: carries the requests; HTTP by default.
    """

    def __init__(
        self,
        urls: Mapping[int, str],
        timeouts: PushTimeouts,
        *,
        observe: Observer = unobserved,
        wire: Wire | None = None,
    ) -> None:
        self.timeouts = timeouts
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="resync-control", daemon=True
        )
        self._wire = HttpWire() if wire is None else wire
        self.engines = tuple(
            EngineControl(index=i, url=url, wire=self._wire, timeouts=timeouts, observe=observe)
            for i, url in urls.items()
        )
        # Set while engines are quiesced: the channel that is open is not, or not only, theirs.
        self.must_rejoin = False
        self._thread.start()

    @property
    def active(self) -> tuple[EngineControl, ...]:
        """The engines that a push includes: all but those that are quarantined."""
        return tuple(engine for engine in self.engines if engine.quarantined is None)

    def run(self, awaitable: Awaitable[T]) -> T:
        """Run a coroutine on the fleet's loop and return its result; blocks the calling thread."""

        async def once() -> T:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(once(), self._loop).result()

    def each(
        self,
        action: Action,
        *,
        engines: Iterable[EngineControl] | None = None,
        coupled: bool = False,
    ) -> None:
        """Run an action on every engine at once and collect every outcome.

        Args:
            action: what to do with one engine.
            engines: those that are not quarantined by default.
            coupled: the engines wait for each other inside the action. After the first failure
                the others get ``settle_s`` to end and are given up then.

        Raises:
            FleetError: at least one engine failed; it holds the error of each that did.
        """
        chosen = self.active if engines is None else tuple(engines)
        failures = self.run(self._each(action, chosen, coupled))
        if failures:
            raise FleetError(failures)

    async def _each(
        self, action: Action, engines: Sequence[EngineControl], coupled: bool
    ) -> list[EngineError]:
        tasks = [asyncio.ensure_future(_outcome(action, engine)) for engine in engines]
        pending: set[asyncio.Future[BaseException | None]] = set(tasks)
        give_up_s: float | None = None  # on the loop's clock; from the first failure on
        while pending:
            limit_s = None if give_up_s is None else max(0.0, give_up_s - self._loop.time())
            done, pending = await asyncio.wait(
                pending, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                for task in pending:
                    task.cancel()
                await asyncio.wait(pending)
                break
            failed = any(task.result() is not None for task in done)
            if coupled and failed and give_up_s is None:
                give_up_s = self._loop.time() + self.timeouts.settle_s
        outcomes = [
            _given_up(engine, self.timeouts.settle_s) if task.cancelled() else task.result()
            for engine, task in zip(engines, tasks, strict=True)
        ]
        return engine_errors(outcomes)

    async def _end_requests(self) -> None:
        requests = asyncio.all_tasks() - {asyncio.current_task()}
        for task in requests:
            task.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        await self._wire.close()

    def reports(self) -> tuple[EngineReport, ...]:
        """Return what is known of each engine."""
        return tuple(engine.report() for engine in self.engines)

    def close(self) -> None:
        """Close the connections and end the thread. Sends nothing.

        A request that is under way is given up: a thread of the trainer engine that still waits
        for it gets ``CancelledError`` instead of waiting for a loop that has ended.
        """
        if self._loop.is_closed():
            return
        self.run(self._end_requests())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(self.timeouts.settle_s)
        if not self._thread.is_alive():
            self._loop.close()


async def _outcome(action: Action, engine: EngineControl) -> BaseException | None:
    """Return the exception of one engine's action as a value, so that the others go on."""
    try:
        await action(engine)
    except Exception as error:
        return error
    return None


def _given_up(engine: EngineControl, settle_s: float) -> EngineError:
    return EngineTimeout(
        engine.index,
        "fan-out",
        f"another engine failed, and expected an answer within {settle_s:g} s of that, found none",
    )
