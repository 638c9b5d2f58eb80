"""Random sequences find no difference between the fake and vLLM.

On vLLM's own code in this process with one and two workers, and on a live server with one, where
completions show which weights are served as well. The sequences are the same in every run; for
more of them, or others::

    DIFFERENTIAL_EXAMPLES=2000 DIFFERENTIAL_STEPS=40 DIFFERENTIAL_SEED=random

A difference that is found prints what to set to see it again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.differential import Effort, Plan, Side, compare
from conformance.engine.contract import EngineUnderTest
from vllm_engine.in_process import make_in_process
from vllm_engine.live import LiveEngines, ServedStep
from vllm_engine.pool import ServerPool

sys.path.append(str(Path(__file__).parents[1] / "conformance"))
from fake_engines import in_process
from fake_serving import served_step

ONE_FAILS: tuple[Mapping[str, int], ...] = (
    {},
    {"start_weight_update": 0},
    {"finish_weight_update": 0},
)
OF_TWO_FAILS = (*ONE_FAILS, {"start_weight_update": 1}, {"finish_weight_update": 1})


@pytest.fixture
def same_garbage() -> Iterator[None]:
    """Fill what vLLM leaves uninitialised with NaN.

    A layer of which a part never came holds whatever was in that memory, the missing part perhaps.
    """
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Keep vLLM's stack traces out: every refused request has one."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("same_garbage", "quiet")
@pytest.mark.parametrize(("workers", "failing"), [(1, ONE_FAILS), (2, OF_TWO_FAILS)])
def test_in_process(workers: int, failing: tuple[Mapping[str, int], ...]) -> None:
    """With one worker and with two, whose replies shift."""
    compare(
        Side(name="vllm", make=make_in_process, tidy=tidy),
        Side(name="fake", make=in_process(), tidy=tidy),
        plan=Plan(workers=workers, failing=failing),
        effort=Effort.from_environment(examples=90, steps=16),
    )


def test_live(runner: asyncio.Runner, pool: ServerPool, tmp_path: Path) -> None:
    """With one worker, on a server that serves: also who serves what, and what waits while paused.

    A completion without weights, which ends a server, is a rule of its own (`test_live_engine`).
    """
    compare(
        Side(name="vllm", make=LiveEngines(pool, tmp_path), served=ServedStep(), tidy=tidy),
        Side(name="fake", make=fake_of_a_cpu, served=served_step, tidy=tidy),
        plan=Plan(failing=ONE_FAILS, in_place=False, deaths=False, limit_s=60),
        effort=Effort.from_environment(examples=27, steps=12),
        runner=runner,
    )


@asynccontextmanager
async def fake_of_a_cpu(**options: Any) -> AsyncIterator[EngineUnderTest]:
    """Make a fake whose ``fused`` layer is the one of the live engine's model."""
    async with in_process()(**options) as engine:
        engine.fused = [name for name in engine.names if "gate_proj" in name or "up_proj" in name]
        yield engine


def tidy(text: str) -> str:
    """Return an answer without what the two say otherwise by nature.

    That is the class of the worker, the text of a fault that was injected, the order of names in a
    set, and the extents of the model.
    """
    text = re.sub(r"'(CPU)?Worker' object", "'Worker' object", text)
    text = re.sub(r"injected[^']*", "injected", text)
    text = re.sub(r"torch\.Size\(\[[\d, ]*\]\)", "torch.Size", text)
    text = re.sub(r"length \(\d+\) exceeds", "length exceeds", text)
    return re.sub(r"(?<=are: \{).*?(?=\})", _sorted, text)


def _sorted(names: re.Match[str]) -> str:
    return ", ".join(sorted(names[0].split(", ")))
