"""The engine core: one queue for everything, the version string, pause and sleep, and death.

Everything but ``/health``, ``/metrics`` and ``/get_world_size`` waits in this queue, so a worker
that never answers blocks it all, as in vLLM.

Source: vLLM 0.32, ``v1/engine/core.py`` (``EngineCoreProc``) and ``v1/engine/async_llm.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from fakes.engine.executor import Executor
from fakes.engine.generation import Completion, PauseMode, PauseState, Scheduler, ServedWeights
from harness.contracts import Recorder

INITIAL_VERSION = "default"
SLEEP_TAGS = frozenset({"weights", "kv_cache"})

T = TypeVar("T")


class EngineDeadError(Exception):
    """The core has died; nothing but a new process helps."""

    def __init__(self) -> None:
        super().__init__(
            "EngineCore encountered an issue. See stack trace (above) for the root cause."
        )


class UtilityError(Exception):
    """A call into the core failed; the message is vLLM's."""


class EngineCore:
    """One engine: its workers behind a strict first-in, first-out queue.

    Args:
        executor: the workers.
        record: journal of the tokens that are served, and of each new version.
        token_interval_s: time between two steps of generation, in seconds.
        on_death: called once, when the core dies.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        record: Recorder,
        token_interval_s: float,
        on_death: Callable[[], None],
    ) -> None:
        self.executor = executor
        self.weights = ServedWeights(executor.workers)
        self.scheduler = Scheduler(record)
        self.version = INITIAL_VERSION
        self.dead = False
        self._sleeping_tags: set[str] = set()
        self._fifo = asyncio.Lock()  # wakes its waiters in the order in which they came
        self._record = record
        self._token_interval_s = token_interval_s
        self._on_death = on_death
        self._stepper: asyncio.Task[None] | None = None
        self._pauses: list[tuple[asyncio.Future[None], Callable[[], Awaitable[None]]]] = []

    @property
    def sleeping(self) -> bool:
        """Whether some memory is asleep; unlike ``/is_sleeping``, not when merely paused."""
        return bool(self._sleeping_tags)

    # -- calls of the front end, one per method of vLLM's AsyncLLM ---------------------------

    async def collective_rpc(
        self,
        method: str,
        *,
        timeout_s: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Run one RPC on every worker; one result per rank."""
        return await self._utility(
            "collective_rpc",
            lambda: self.executor.collective_rpc(method, timeout_s, args, kwargs),
        )

    async def finish_weight_update(self, version: str | None) -> None:
        """Finish the session, then set the version: two calls, so others can come in between."""
        await self.collective_rpc("finish_weight_update")
        if version is not None:
            await self.set_version(version)

    async def set_version(self, version: str) -> None:
        async def run() -> None:
            self.version = version
            self._record("version", version=version)

        await self._utility("set_weight_version", run)

    async def get_version(self) -> str:
        async def run() -> str:
            return self.version

        return await self._utility("get_weight_version", run)

    async def compute_weight_checksums(self) -> list[dict[str, str]]:
        return await self._utility(
            "compute_weight_checksums",
            lambda: self.executor.collective_rpc("compute_weight_checksums"),
        )

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        """Pause generation; with ``wait`` the queue stays open until the requests have ended."""
        await self._deferred("pause_scheduler", mode, lambda: self._finish_pause(clear_cache))

    async def resume(self) -> None:
        async def run() -> None:
            self._resume()

        await self._utility("resume_scheduler", run)

    async def is_paused(self) -> bool:
        async def run() -> bool:
            return self.scheduler.paused

        return await self._utility("is_scheduler_paused", run)

    async def sleep(self, level: int, mode: PauseMode) -> None:
        async def complete() -> None:
            await self._finish_pause(clear_cache=level >= 1)
            if level >= 1 and "weights" not in self._sleeping_tags:
                await self.executor.collective_rpc("sleep", kwargs={"level": level})
                self._sleeping_tags |= SLEEP_TAGS

        await self._deferred("sleep", mode, complete)

    async def wake_up(self, tags: Sequence[str] | None) -> bool:
        """Wake up; return whether all memory is back, which also resumes scheduling."""

        async def run() -> bool:
            memory = None if tags is None else [tag for tag in tags if tag != "scheduling"]
            if memory is None or memory:
                await self._wake_memory(memory)
            if not self._sleeping_tags:
                self._resume()
            return not self._sleeping_tags

        return await self._utility("wake_up", run)

    async def is_sleeping(self) -> bool:
        async def run() -> bool:
            return self.scheduler.paused or self.sleeping

        return await self._utility("is_sleeping", run)

    async def reset_prefix_cache(self, *, reset_running_requests: bool) -> bool:
        async def run() -> bool:
            return self.scheduler.reset_prefix_cache(reset_running_requests=reset_running_requests)

        return await self._utility("reset_prefix_cache", run)

    async def reset_worker_cache(self, kind: str) -> None:
        """Clear the workers' ``mm`` or ``encoder`` cache."""
        name = f"reset_{kind}_cache"
        await self._utility(name, lambda: self.executor.collective_rpc(name))

    async def release_kv_cache_memory(self) -> None:
        async def run() -> None:
            if not self.scheduler.paused or self.scheduler.has_work():
                raise RuntimeError("release_kv_cache_memory() requires a completed pause first")
            if self._sleeping_tags:
                raise RuntimeError(
                    "release_kv_cache_memory() requires all executor memory to be resident"
                )
            await self._reset_caches()
            await self.executor.collective_rpc("discard", args=(("kv_cache",),))
            self._sleeping_tags.add("kv_cache")

        await self._utility("release_kv_cache_memory", run)

    async def generate(self, request: Completion) -> str:
        """Queue a completion and return its finish reason once it has ended."""
        self._check_alive()
        async with self._fifo:
            await self._hang_if_dead()
            self.scheduler.add(request)
        self._keep_stepping()
        return await request.finished

    async def abort(self, request_ids: Sequence[str] | None) -> int:
        """End the named completions, or all; return how many ended."""
        self._check_alive()
        async with self._fifo:
            await self._hang_if_dead()
            return self.scheduler.abort(request_ids)

    # -- inside the queue --------------------------------------------------------------------

    async def _utility(self, name: str, run: Callable[[], Awaitable[T]]) -> T:
        """Run one call of the core in its turn.

        Raises:
            EngineDeadError: the core was dead when the call came.
            UtilityError: the call failed.
        """
        self._check_alive()
        async with self._fifo:
            await self._hang_if_dead()
            try:
                return await run()
            except Exception as error:
                raise _failed(name, error) from error

    async def _deferred(
        self, name: str, mode: PauseMode, complete: Callable[[], Awaitable[None]]
    ) -> None:
        """Pause, and run ``complete`` in the queue once no request has anything left to do."""

        async def run() -> asyncio.Future[None] | None:
            if mode == "abort":
                self.scheduler.abort()
            self.scheduler.pause_state = (
                PauseState.PAUSED_ALL if mode == "keep" else PauseState.PAUSED_NEW
            )
            if not self.scheduler.has_work():
                await complete()
                return None
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._pauses.append((idle, complete))
            return idle

        idle = await self._utility(name, run)
        if idle is not None:
            try:
                await idle
            except Exception as error:
                raise _failed(name, error) from error

    async def _finish_pause(self, clear_cache: bool) -> None:
        await self.executor.collective_rpc("synchronize_device")
        if clear_cache:
            await self._reset_caches()

    async def _reset_caches(self) -> None:
        self.scheduler.reset_prefix_cache(reset_running_requests=True)
        await self.executor.collective_rpc("reset_mm_cache")
        await self.executor.collective_rpc("reset_encoder_cache")

    async def _wake_memory(self, tags: Sequence[str] | None) -> None:
        if not self._sleeping_tags or any(tag not in self._sleeping_tags for tag in tags or ()):
            return  # vLLM warns and does nothing
        await self.executor.collective_rpc("wake_up", kwargs={"tags": tags})
        self._sleeping_tags -= set(tags or SLEEP_TAGS)

    def _resume(self) -> None:
        self.scheduler.pause_state = PauseState.UNPAUSED
        self._keep_stepping()

    # -- generation --------------------------------------------------------------------------

    def _keep_stepping(self) -> None:
        if self._stepper is None or self._stepper.done():
            self._stepper = asyncio.get_running_loop().create_task(self._step_while_busy())

    async def _step_while_busy(self) -> None:
        while self.scheduler.has_work() and not self.dead:
            await asyncio.sleep(self._token_interval_s)
            async with self._fifo:
                if self.scheduler.has_work() and not self.dead:
                    await self._step()
                await self._complete_pauses()

    async def _step(self) -> None:
        """One forward pass. Weights on meta, or a stale reply of rank 0, kill the engine."""
        await self.executor.drain()
        if self.weights.on_meta or self.executor.threads[0].backlog:
            self._die()
        else:
            self.scheduler.step(self.weights.fingerprint(), self.version)

    async def _complete_pauses(self) -> None:
        if self.scheduler.has_work() or self.dead:
            return
        pauses, self._pauses = self._pauses, []
        for idle, complete in pauses:
            try:
                await complete()
            except Exception as error:
                idle.set_exception(error)
            else:
                idle.set_result(None)

    # -- death -------------------------------------------------------------------------------

    def _die(self) -> None:
        self.dead = True
        self.scheduler.fail(EngineDeadError())
        self._on_death()

    def _check_alive(self) -> None:
        if self.dead:
            raise EngineDeadError

    async def _hang_if_dead(self) -> None:
        """A call that was waiting when the core died is never answered, as in vLLM."""
        if self.dead:
            await asyncio.get_running_loop().create_future()


def _failed(name: str, error: Exception) -> UtilityError:
    return UtilityError(f"Call to {name} method failed: {error}")
