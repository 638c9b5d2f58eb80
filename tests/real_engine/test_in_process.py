"""vLLM's own code obeys the rules, and the fake answers them word for word as it does.

Everything runs in this process (`vllm_engine.in_process`). Rules that need what it does not offer
are for a live server; the last test prints them.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import vllm

from conformance.engine import CHECKS
from conformance.engine.contract import EngineMaker, EngineUnderTest
from conformance.engine.rules import Need, not_run
from fakes import model_spec
from vllm_engine.in_process import SEED, make_in_process

sys.path.append(str(Path(__file__).parents[1] / "conformance"))
from fake_engines import in_process as make_fake

OFFERS = set(Need) - {Need.SERVES, Need.CPU_LAYERS}
LEFT_OUT = not_run(CHECKS, OFFERS)
ON_CPU_LAYERS = [name for name, needs in LEFT_OUT.items() if needs == [Need.CPU_LAYERS]]
RUN = [name for name in CHECKS if name not in LEFT_OUT]
LIMIT_S = 20.0
NEWEST_STEP = 2  # of any check


@pytest.mark.parametrize("name", RUN)
def test_rule(name: str) -> None:
    """vLLM's code passes, and the fake gives the same answers, down to the text."""
    real, fake = (transcript(name, maker) for maker in (make_in_process, make_fake()))
    assert fake == real


@pytest.mark.parametrize("name", ON_CPU_LAYERS)
def test_rule_of_a_cpu(name: str) -> None:
    """vLLM's code passes with layers that follow the rules of a CPU, which the fake has not."""
    make = partial(make_in_process, cpu_layers=True)
    asyncio.run(asyncio.wait_for(CHECKS[name](make), LIMIT_S))


def transcript(name: str, make: EngineMaker) -> list[str]:
    """Return every request of a check with its answer, as it came, in order."""
    lines: list[str] = []

    @asynccontextmanager
    async def noting(**options: Any) -> AsyncIterator[EngineUnderTest]:
        lines.append(f"make {options}")
        async with make(**options) as engine:
            engine.client.event_hooks["response"].append(note)
            yield engine

    async def note(answer: httpx.Response) -> None:
        await answer.aread()
        request = answer.request
        if request.url.path not in ("/metrics", "/version"):  # of the process, and of the program
            asked = f"{request.method} {request.url.raw_path.decode()}"
            lines.append(f"{asked} {answer.status_code} {comparable(answer.text)}")

    asyncio.run(asyncio.wait_for(CHECKS[name](noting), LIMIT_S))
    return lines


def comparable(text: str) -> str:
    """Return an answer without what the two say otherwise by nature.

    That is the class of the worker, the text of a fault that was injected, the order of names in a
    set, and the digest of a parameter that holds uninitialised memory.
    """
    text = re.sub(r"'(CPU)?Worker' object", "'Worker' object", text)
    text = re.sub(r"injected[^']*", "injected", text)
    text = re.sub(r"(?<=are: \{).*?(?=\})", lambda names: sorted_names(names[0]), text)
    return re.sub(
        r'"[0-9a-f]{64}"', lambda digest: digest[0] if digest[0] in KNOWN else "torn", text
    )


def sorted_names(text: str) -> str:
    return ", ".join(sorted(text.split(", ")))


KNOWN = {
    f'"{digest}"'
    for step in range(NEWEST_STEP + 1)
    for workers in (1, 2, 4)
    for digest in model_spec.expected_checksums(SEED, step, workers).values()
}


def test_what_is_left_to_a_live_server(capsys: pytest.CaptureFixture[str]) -> None:
    """Only completions are; the rules that need them are printed."""
    left = {name: needs for name, needs in LEFT_OUT.items() if name not in ON_CPU_LAYERS}
    num_run = len(CHECKS) - len(left)
    with capsys.disabled():
        print(f"\n{num_run} rules ran on vLLM's code in this process; left to a live server:")
        for name, needs in left.items():
            print(f"  {name}: needs {', '.join(need.value for need in needs)}")
    assert {need for needs in left.values() for need in needs} == {Need.SERVES}
    assert len(RUN) > 250


def test_what_is_cited_is_there() -> None:
    """Each line of vLLM that a rule cites exists in the vLLM that is installed."""
    root = Path(vllm.__file__).parent.parent
    cited = {source for rule in CHECKS.values() for source in rule.proves}
    for source in sorted(cited):
        file, _, lines = source.partition(":")
        if file.startswith("vllm/"):
            num_lines = len((root / file).read_text(encoding="utf-8").splitlines())
            assert int(lines.rpartition("-")[2] or 1) <= num_lines, source
