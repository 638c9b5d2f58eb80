"""Random sequences find every rule that a fake breaks, shrink to it, and name it.

A canary breaks one rule of one fake by replacing a method of that instance, which mypy cannot
follow: hence each ``type: ignore[method-assign]`` here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_engines import in_process
from fake_serving import served_step

from conformance.differential import Difference, Effort, Plan, Side, compare
from conformance.differential.calls import Call, Request
from conformance.differential.shrink import shortest
from conformance.engine import CHECKS
from conformance.engine.contract import EngineMaker
from fakes.engine.app import Engine
from fakes.engine.layers import Layer
from fakes.engine.worker import Worker

EFFORT = Effort(examples=90, steps=12, seed=5)
FAILING: tuple[Mapping[str, int], ...] = (
    {},
    {"start_weight_update": 0},
    {"finish_weight_update": 0},
)


def fake(name: str, spoil: Callable[[Engine], None] = lambda engine: None) -> Side:
    """Return one side: fakes in this process, each broken by ``spoil``."""
    return Side(name=name, make=in_process(spoil), served=served_step)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fake_is_like_itself(workers: int) -> None:
    """Nothing in a sequence is left to chance: two equal engines never differ."""
    plan = Plan(workers=workers, failing=FAILING)
    compare(fake("one"), fake("other"), plan=plan, effort=Effort(examples=18, steps=12))


def _after(engine: Engine, spoil: Callable[[Worker, str, bool], None]) -> None:
    """Let ``spoil`` change a worker after each RPC; told its name and whether it failed."""
    for worker in engine.core.executor.workers:

        def call(method: str, args: Any, kwargs: Any, worker: Worker = worker) -> Any:
            failed = True
            try:
                result = Worker.call(worker, method, args, kwargs)
                failed = False
                return result
            finally:
                spoil(worker, method, failed)

        worker.call = call  # type: ignore[method-assign]


def _failed_finish_ends_the_session(engine: Engine) -> None:
    def spoil(worker: Worker, method: str, failed: bool) -> None:
        worker.active = worker.active and not (failed and method == "finish_weight_update")

    _after(engine, spoil)


def _failed_update_keeps_the_session(engine: Engine) -> None:
    def spoil(worker: Worker, method: str, failed: bool) -> None:
        worker.active = worker.active or (failed and method == "update_weights")

    _after(engine, spoil)


def _init_ends_the_session(engine: Engine) -> None:
    def spoil(worker: Worker, method: str, failed: bool) -> None:
        worker.active = worker.active and method != "init_weight_transfer_engine"

    _after(engine, spoil)


def _replies_never_shift(engine: Engine) -> None:
    executor = engine.core.executor
    rpc = executor.collective_rpc

    async def tidy(*args: Any, **kwargs: Any) -> Any:
        try:
            return await rpc(*args, **kwargs)
        finally:
            await executor.drain()
            for thread in executor.threads:
                while thread.has_reply():
                    thread.take()

    executor.collective_rpc = tidy  # type: ignore[method-assign]


def _start_forgets_progress(engine: Engine) -> None:
    for layer in _layers(engine):

        def arm(layer: Layer = layer) -> None:
            layer.restore()
            Layer.arm(layer)

        layer.arm = arm  # type: ignore[method-assign]


def _finish_drops_partial_layers(engine: Engine) -> None:
    for layer in _layers(engine):
        layer.finalize = layer.restore  # type: ignore[method-assign]


def _layers(engine: Engine) -> list[Layer]:
    return [layer for worker in engine.core.executor.workers for layer in worker.model.layers]


def _misspelt_version_is_taken(engine: Engine) -> None:
    core = engine.core
    finish = core.finish_weight_update

    async def spoilt(version: str | None) -> None:
        await finish("7" if version is None else version)

    core.finish_weight_update = spoilt  # type: ignore[method-assign]


def _resume_is_forgotten(engine: Engine) -> None:
    engine.core._resume = lambda: None  # type: ignore[method-assign]


def _tokens_ignore_the_weights(engine: Engine) -> None:
    engine.core.weights.fingerprint = lambda: "same"  # type: ignore[method-assign]


def _death_goes_unnoticed(engine: Engine) -> None:
    engine.core._die = lambda: engine.core.scheduler.abort()  # type: ignore[assignment]


@dataclass(frozen=True)
class Canary:
    """A broken fake: what breaks it, the rule that must be named, and the longest story told."""

    spoil: Callable[[Engine], None]
    rule: str
    calls: int
    workers: int = 1
    failing: Mapping[str, int] | None = None


# fmt: off
CANARIES = [
    # how the engine is broken               the rule that is named                         calls
    Canary(_failed_finish_ends_the_session,  "sessions.failed_finish_keeps_the_session",    3,
           failing={"finish_weight_update": 0}),
    Canary(_failed_update_keeps_the_session, "sessions.failed_update_ends_the_session",     3),
    Canary(_init_ends_the_session,           "sessions.open_keeps_its_channel",             3),
    Canary(_replies_never_shift,             "replies.failing_probe_poisons_the_next",      3,
           workers=2),
    Canary(_start_forgets_progress,          "layers.a_straight_resend_is_torn",            5),
    Canary(_finish_drops_partial_layers,     "layers.a_partial_push_is_committed_torn",     4),
    Canary(_misspelt_version_is_taken,       "versions.misspelt_fields_are_ignored",        2),
    Canary(_resume_is_forgotten,             "pausing.pause_and_resume_are_idempotent",     2),
    Canary(_tokens_ignore_the_weights,       "serving.tokens_follow_the_weights",           1),
    Canary(_death_goes_unnoticed,            "serving.serving_without_weights_is_fatal",    2),
]
# fmt: on
NAMED = {canary.rule: CHECKS[canary.rule] for canary in CANARIES}


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.spoil.__name__[1:])
def test_canary(canary: Canary) -> None:
    """A broken rule is found in few calls and named; what is printed tells the two apart."""
    sound, broken = fake("sound"), fake("broken", canary.spoil)
    plan = Plan(workers=canary.workers, failing=(canary.failing or {},))
    with pytest.raises(Difference) as found:
        compare(sound, broken, plan=plan, effort=EFFORT, rules=NAMED)
    told = found.value
    assert f"    {canary.rule}\n" in str(told)
    assert len(told.calls) <= canary.calls
    assert [name for name, _ in told.found] == ["sound", "broken"]
    if "A completion is then of" in told.source:
        return  # who serves what is the makers' to say: no check can ask an engine
    _run(told.source, sound.make)
    with pytest.raises(AssertionError):
        _run(told.source, broken.make)


def _run(source: str, make: EngineMaker) -> None:
    """Run the check that a report prints, as somebody would who copies it out."""
    module: dict[str, Any] = {}
    exec(compile(source, "<printed>", "exec"), module)
    asyncio.run(module["behaves_like_the_reference"](make))


def test_the_whole_report() -> None:
    """Both answers, the rules by name, how to play it again, and the check."""
    sound, broken = fake("sound"), fake("broken", _failed_finish_ends_the_session)
    plan = Plan(failing=({"finish_weight_update": 0},))
    effort = Effort(examples=90, steps=12, seed=3)
    rules = {name: rule for name, rule in CHECKS.items() if name.startswith(("sess", "layers"))}
    with pytest.raises(Difference) as found:
        compare(sound, broken, plan=plan, effort=effort, rules=rules)
    lines = str(found.value).splitlines()
    assert lines[0].endswith("differs after 3 calls:")
    assert lines[1].startswith("     sound: ")
    assert lines[2].startswith("    broken: ")
    assert lines[3] == "Checks of conformance.engine that broken fails, too:"
    named = lines[4 : lines.index(f"To play it again: {effort}")]
    assert "    sessions.failed_finish_keeps_the_session" in named
    assert "    layers.a_push_is_whole" not in named
    assert "As a check, for a module of conformance/engine:" in lines
    assert "    async def behaves_like_the_reference(make: EngineMaker) -> None:" in lines


def test_shortest() -> None:
    """Every call that a difference does not need is left out, wherever it comes to light."""
    calls = [Request(f"POST /{letter}") for letter in "abcdefghij"]
    needed = {calls[2], calls[7]}

    async def replay(calls: Sequence[Call], failing: Mapping[str, int]) -> Difference | None:
        for number in range(1, len(calls) + 1):
            if needed <= set(calls[:number]):
                return _difference(calls[:number])
        return None

    found = asyncio.run(shortest(_difference(calls), replay))
    assert set(found.calls) == needed


def test_shortest_of_what_does_not_repeat() -> None:
    """A difference that was seen once is still reported."""

    async def replay(calls: Sequence[Call], failing: Mapping[str, int]) -> Difference | None:
        return None

    once = _difference([Request("POST /a")])
    assert asyncio.run(shortest(once, replay)) is once


def _difference(calls: Sequence[Call]) -> Difference:
    return Difference("it", [("one", "1"), ("other", "2")], "", calls=calls, failing={})


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No database of examples and no notes of Hypothesis appear where the tests are run."""
    monkeypatch.chdir(tmp_path)
    compare(fake("one"), fake("other"), plan=Plan(), effort=Effort(examples=2, steps=2))
    assert list(tmp_path.iterdir()) == []


def test_effort_from_the_environment() -> None:
    """A longer or another run is asked for by environment variables, and printed the same way."""
    default = Effort.from_environment(examples=5, steps=6, environ={})
    assert default == Effort(examples=5, steps=6, seed=0)
    environ = {"DIFFERENTIAL_EXAMPLES": "500", "DIFFERENTIAL_STEPS": "40", "DIFFERENTIAL_SEED": "9"}
    asked = Effort.from_environment(examples=5, steps=6, environ=environ)
    assert asked == Effort(examples=500, steps=40, seed=9)
    assert str(asked) == " ".join(f"{name}={value}" for name, value in environ.items())
    random = {"DIFFERENTIAL_SEED": "random"}
    seeds = {Effort.from_environment(examples=5, steps=6, environ=random).seed for _ in range(9)}
    assert len(seeds) > 1


@pytest.mark.parametrize(
    ("name", "value"), [("EXAMPLES", "0"), ("STEPS", "many"), ("SEED", "-1"), ("EXAMPLES", "1.5")]
)
def test_effort_refuses(name: str, value: str) -> None:
    """What is no number is refused by its name."""
    with pytest.raises(ValueError, match=f"DIFFERENTIAL_{name}: expected a whole number from .*"):
        Effort.from_environment(examples=5, steps=6, environ={f"DIFFERENTIAL_{name}": value})
