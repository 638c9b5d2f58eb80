"""A live vLLM server obeys the rules: all that one worker can show, and three tables of two.

With two workers a request that fails in one of them leaves the server's replies shifted for good,
so each table starts a server of its own.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from conformance.engine import CHECKS
from conformance.engine.rules import Need, not_run
from vllm_engine.live import LiveEngines
from vllm_engine.pool import ServerPool

OFFERS = {Need.SERVES, Need.FAILS, Need.CPU_LAYERS}
LEFT_OUT = not_run(CHECKS, OFFERS)
# They end their server; last, so that what comes after needs no other.
DEADLY = [name for name in CHECKS if name == "serving.serving_without_weights_is_fatal"]
RUN = [name for name in CHECKS if name not in LEFT_OUT and name not in DEADLY] + DEADLY
TABLES = (
    "replies.first_worker_fails",  # B
    "replies.both_workers_fail",  # C
    "replies.shifted_finish_publishes",  # D
)
LIMIT_S = 60.0


@pytest.mark.parametrize("name", RUN)
def test_rule(
    name: str, runner: asyncio.Runner, pool: ServerPool, tmp_path: Path
) -> None:
    """The rule holds on a server of one worker."""
    check = CHECKS[name](LiveEngines(pool, tmp_path))
    runner.run(asyncio.wait_for(check, LIMIT_S))


@pytest.mark.parametrize("name", TABLES)
def test_table(
    name: str, runner: asyncio.Runner, pool: ServerPool, tmp_path: Path
) -> None:
    """The table of facts 1.3 holds on a server of two workers."""
    check = CHECKS[name](LiveEngines(pool, tmp_path))
    runner.run(asyncio.wait_for(check, LIMIT_S))
