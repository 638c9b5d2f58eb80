"""Pause, resume, sleep and wake-up, and what becomes of the requests that were running.

Source: vLLM 0.32, ``v1/engine/core.py`` (``pause_scheduler``, ``sleep``, ``wake_up``).
"""

from __future__ import annotations

import asyncio

from conformance.engine.contract import EngineMaker, EngineUnderTest, Json, Step, complete, converse
from conformance.engine.rules import Need, proves

PAUSED = Step("GET /is_paused", says='{"is_paused":true}')
RUNNING = Step("GET /is_paused", says='{"is_paused":false}')
LONG_TOKENS = 200
LONG = {"prompt": "long", "max_tokens": LONG_TOKENS, "return_token_ids": True}


async def _start_long(engine: EngineUnderTest) -> asyncio.Task[Json]:
    """Return a completion that is running: one short completion has passed since it came."""

    async def run() -> Json:
        answer = await engine.client.post("/v1/completions", json=LONG)
        return answer.json()["choices"][0]

    task = asyncio.create_task(run())
    await complete(engine)
    return task


@proves("facts 8.2 vector 12", "vllm/v1/engine/core.py:2061")
async def pause_and_resume_are_idempotent(make: EngineMaker) -> None:
    """Pause twice, resume twice: 200 each, and the state follows."""
    pause = Step("POST /pause", says='{"status":"paused"}')
    resume = Step("POST /resume", says='{"status":"resumed"}')
    async with make() as engine:
        await converse(engine, [resume, RUNNING, pause, PAUSED, pause, PAUSED])
        await converse(engine, [resume, RUNNING, resume, RUNNING])


@proves("facts 1.2", "vllm/v1/engine/core.py:2087")
async def every_mode_pauses(make: EngineMaker) -> None:
    """``abort``, ``wait`` and ``keep`` pause an idle engine."""
    async with make() as engine:
        for mode in ("abort", "wait", "keep"):
            await converse(engine, [Step(f"POST /pause?mode={mode}"), PAUSED])
            await converse(engine, [Step("POST /resume"), RUNNING])


@proves("facts 1.2", "vllm/v1/engine/core.py:2061", needs=[Need.SERVES])
async def a_paused_engine_queues(make: EngineMaker) -> None:
    """A completion that comes while paused waits, and is served after the resume."""
    async with make() as engine:
        await converse(engine, [Step("POST /pause")])
        waiting = asyncio.create_task(complete(engine))
        await converse(engine, [PAUSED, PAUSED])
        assert not waiting.done(), "expected the paused engine to queue a completion"
        await converse(engine, [Step("POST /resume")])
        choice = await waiting
        assert choice["finish_reason"] == "length", f"expected length, found {choice}"


@proves("facts 8", "vllm/v1/engine/core.py:2087", needs=[Need.SERVES])
async def abort_ends_what_runs(make: EngineMaker) -> None:
    """Pause with ``abort`` ends running completions early with that reason."""
    async with make() as engine:
        running = await _start_long(engine)
        await converse(engine, [Step("POST /pause?mode=abort")])
        choice = await running
        assert choice["finish_reason"] == "abort", f"expected abort, found {choice}"
        assert 0 < len(choice["token_ids"]) < LONG_TOKENS, f"found {choice}"


@proves("facts 8", "vllm/v1/engine/core.py:2061", needs=[Need.SERVES])
async def wait_drains_what_runs(make: EngineMaker) -> None:
    """Pause with ``wait`` is answered once running completions have ended in full."""
    async with make() as engine:
        running = await _start_long(engine)
        await converse(engine, [Step("POST /pause?mode=wait"), PAUSED])
        choice = await running
        assert choice["finish_reason"] == "length", f"expected length, found {choice}"


@proves("facts 8", "vllm/v1/engine/core.py:2061", needs=[Need.SERVES])
async def keep_freezes_what_runs(make: EngineMaker) -> None:
    """Pause with ``keep`` freezes running completions; they end in full after the resume."""
    async with make() as engine:
        running = await _start_long(engine)
        await converse(engine, [Step("POST /pause?mode=keep"), PAUSED, PAUSED])
        assert not running.done(), "expected the completion to be frozen"
        await converse(engine, [Step("POST /resume")])
        choice = await running
        assert choice["finish_reason"] == "length", f"expected length, found {choice}"


@proves("facts 8", "vllm/v1/core/sched/scheduler.py:2840", needs=[Need.SERVES])
async def flush_needs_a_free_cache(make: EngineMaker) -> None:
    """``/reset_prefix_cache`` fails while requests hold blocks, and says so with 200."""
    async with make() as engine:
        running = await _start_long(engine)
        await converse(
            engine,
            [
                Step("POST /reset_prefix_cache", says='{"success":false}'),
                Step("POST /pause?mode=keep&clear_cache=true"),
                Step("POST /reset_prefix_cache", says='{"success":true}'),
                Step("POST /abort_requests", says='{"status":"aborted","aborted":1}', body={}),
            ],
        )
        assert (await running)["finish_reason"] == "abort"


CHECKS = (
    pause_and_resume_are_idempotent,
    every_mode_pauses,
    a_paused_engine_queues,
    abort_ends_what_runs,
    wait_drains_what_runs,
    keep_freezes_what_runs,
    flush_needs_a_free_cache,
)
