"""vLLM's own trainer engines push to fake engines over HTTP: real ranks, real requests.

That a push arrived is part of a scenario's verdict: the checksums of every engine are those of the
step that was pushed, and one more clean push succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.contracts import ScenarioResult, Verdict
from harness.launcher import Launcher
from harness.parts import default_parts
from harness.scenario import Expectation, Scenario
from harness.scenario_file import load_file
from harness.suite import Suite

SCENARIOS = Path(__file__).parents[2] / "scenarios"
TARGET = "tests.real_engine.vllm_loop_target:build"
# What strikes the send loop itself, or a session in the middle of it.
FILES = (
    "connect/port_taken_once.yaml",
    "connect/rendezvous_fails_once.yaml",
    "draft/target_session_fails_once.yaml",
    "session/later_chunk.yaml",
    "session/update_refused_before_the_pass.yaml",
    "session/worker_raises.yaml",
)
LIMIT_S = 60.0


class Quiet:
    """A display that shows nothing."""

    def begin(self, total: int) -> None: ...

    def started(self, name: str) -> None: ...

    def doing(self, name: str, what: str) -> None: ...

    def finished(self, result: ScenarioResult) -> None: ...

    def end(self) -> None: ...


def with_vllms(scenario: Scenario) -> Scenario:
    """Return the scenario with vLLM's trainer engines, and a target that insists on them."""
    trainer = scenario.trainer.model_copy(update={"send_loop": "vllm"})
    return scenario.model_copy(update={"trainer": trainer, "target": scenario.target or TARGET})


def clean(transport: str, *, packed: bool) -> Scenario:
    """Return three pushes of four ranks to two engines of two workers."""
    name = f"tests/{transport}{'-packed' if packed else ''}"
    fields = {
        "proves": "It arrives.",
        "transport": transport,
        "packed": packed,
        "pushes": 3,
        "draft": True,
        "trainer": {"ranks": 4, "tensor_parallel": 2},
        "engines": {"count": 2, "workers": 2},
        "expect": tuple(
            Expectation.model_validate(
                {"outcome": "resumed", "attempts": 1, "version": str(push), "bytes": "committed"}
            )
            for push in (1, 2, 3)
        ),
    }
    return Scenario.model_validate(fields).named(name, Path(f"{name}.yaml"))


CLEAN = [clean(kind, packed=packed) for kind in ("nccl", "ipc") for packed in (True, False)]
CATALOGUE = [s for file in FILES for s in load_file(SCENARIOS / file).scenarios]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Scenario], ScenarioResult]]:
    """Runs one scenario; all are forked from one parent that has imported vLLM's engines."""
    chosen = [with_vllms(scenario) for scenario in [*CLEAN, *CATALOGUE]]
    parts = default_parts(scenarios=chosen)
    results: dict[str, ScenarioResult] = {}
    with asyncio.Runner() as runner:
        launcher = Launcher(parts.preload)
        runner.run(launcher.__aenter__())
        out_dir = tmp_path_factory.mktemp("runs")
        suite = Suite(launcher, parts, out_dir=out_dir, jobs=1, display=Quiet(), results=results)

        def run_one(scenario: Scenario) -> ScenarioResult:
            runner.run(asyncio.wait_for(suite.run([with_vllms(scenario)]), LIMIT_S))
            return results[scenario.name]

        yield run_one
        runner.run(launcher.close())


@pytest.mark.parametrize("scenario", [*CLEAN, *CATALOGUE], ids=lambda scenario: scenario.name)
def test_passes(scenario: Scenario, run: Callable[[Scenario], ScenarioResult]) -> None:
    """The verdict is the one that our own send loops get."""
    result = run(scenario)
    assert result.verdict == Verdict.PASS, f"{result.sentence}\n{result.journal}"
    arrived = {engine.weights for engine in result.engines}
    assert arrived == {f"push {engine.version}" for engine in result.engines}
