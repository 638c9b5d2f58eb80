"""A live vLLM server obeys the rules: all that one worker can show, and three tables of two.

With two workers a request that fails in one of them leaves the server's replies shifted for good,
so each table starts a server of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import httpx
import pytest

from conformance.engine import CHECKS
from conformance.engine.contract import DEAD, START, Step, converse
from conformance.engine.rules import Need, not_run
from vllm_engine.live import LiveEngines
from vllm_engine.pool import ServerPool

OFFERS = {Need.SERVES, Need.FAILS, Need.CPU_LAYERS}
# Neither is for a live server: its workers have no fault point in the LoRA reset, and it is gone
# within moments of its engine core's death (`test_a_dead_engine_leaves`).
NOT_HERE = ("finish_lora_raises", "serving.serving_without_weights_is_fatal")
LEFT_OUT = not_run(CHECKS, OFFERS)
RUN = [name for name in CHECKS if name not in LEFT_OUT and not any(n in name for n in NOT_HERE)]
# They must send some requests while one completion runs, and the tiny model makes its 200 tokens in
# 0.3 s: on a busy machine they may come too late, and fail. An engine that breaks the rule always
# fails.
IN_TIME = (
    "pausing.abort_ends_what_runs",
    "pausing.keep_freezes_what_runs",
    "pausing.flush_needs_a_free_cache",
)
TRIES = 5
TABLES = (
    "replies.first_worker_fails",  # B
    "replies.both_workers_fail",  # C
    "replies.shifted_finish_publishes",  # D
)
LIMIT_S = 60.0


@pytest.mark.parametrize("name", RUN)
def test_rule(name: str, runner: asyncio.Runner, pool: ServerPool, tmp_path: Path) -> None:
    """The rule holds on a server of one worker."""
    for tries_left in reversed(range(TRIES if name in IN_TIME else 1)):
        check = CHECKS[name](LiveEngines(pool, tmp_path))
        try:
            runner.run(asyncio.wait_for(check, LIMIT_S))
            return
        except AssertionError:
            if not tries_left:
                raise


def test_a_dead_engine_leaves(runner: asyncio.Runner, pool: ServerPool, tmp_path: Path) -> None:
    """A completion in an open session kills the engine core, and the server goes with it."""

    async def check() -> None:
        async with LiveEngines(pool, tmp_path)() as engine:
            completion = Step("POST /v1/completions", 500, DEAD, {"prompt": "x", "max_tokens": 2})
            await converse(engine, [Step("GET /health"), START, Step("GET /health"), completion])
            statuses = set()
            with contextlib.suppress(httpx.TransportError):  # it has gone
                while True:
                    statuses.add((await engine.client.get("/health")).status_code)
            assert statuses <= {503}

    runner.run(asyncio.wait_for(check(), LIMIT_S))


@pytest.mark.parametrize("name", TABLES)
def test_table(name: str, runner: asyncio.Runner, pool: ServerPool, tmp_path: Path) -> None:
    """The table of facts 1.3 holds on a server of two workers."""
    check = CHECKS[name](LiveEngines(pool, tmp_path))
    runner.run(asyncio.wait_for(check, LIMIT_S))
