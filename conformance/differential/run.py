"""Runs the random sequences of one comparison, and names the rule behind what it finds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, configuration, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from conformance.differential.difference import Difference
from conformance.differential.machine import DifferentialMachine, Plan
from conformance.differential.shrink import replay_on, shortest
from conformance.differential.sides import Side
from conformance.engine import CHECKS
from conformance.engine.contract import EngineMaker
from conformance.engine.rules import Rule

CHECK_LIMIT_S = 10.0
# Past its first ten examples Hypothesis makes five of six by repeating parts of the one before,
# which suits data, but not sequences that must differ. So each run of it is short.
BATCH = 9
ENVIRONMENT = "DIFFERENTIAL_EXAMPLES, DIFFERENTIAL_STEPS and DIFFERENTIAL_SEED"


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How many sequences are tried.

    Attributes:
        examples: number of sequences.
        steps: calls of each.
        seed: of the choices; the same seed, examples and steps play the same sequences.
    """

    examples: int
    steps: int
    seed: int = 0

    @classmethod
    def from_environment(
        cls, *, examples: int, steps: int, environ: Mapping[str, str] = os.environ
    ) -> Effort:
        """Return the default, or what the environment asks for.

        ``DIFFERENTIAL_EXAMPLES`` and ``DIFFERENTIAL_STEPS`` are numbers; ``DIFFERENTIAL_SEED`` is
        a number or ``random``.

        Raises:
            ValueError: one of them is neither.
        """
        return cls(
            examples=_number(environ, "DIFFERENTIAL_EXAMPLES", examples),
            steps=_number(environ, "DIFFERENTIAL_STEPS", steps),
            seed=random.SystemRandom().randrange(10**9)
            if environ.get("DIFFERENTIAL_SEED") == "random"
            else _number(environ, "DIFFERENTIAL_SEED", 0, least=0),
        )

    def __str__(self) -> str:
        return (
            f"DIFFERENTIAL_EXAMPLES={self.examples} DIFFERENTIAL_STEPS={self.steps} "
            f"DIFFERENTIAL_SEED={self.seed}"
        )


def _number(environ: Mapping[str, str], name: str, default: int, least: int = 1) -> int:
    found = environ.get(name, "")
    if not found:
        return default
    if not found.isdecimal() or int(found) < least:
        raise ValueError(
            f"{name}: expected a whole number from {least}, found {found!r}. "
            f"Set or unset {ENVIRONMENT}."
        )
    return int(found)


def compare(
    reference: Side,
    other: Side,
    *,
    plan: Plan,
    effort: Effort,
    rules: Mapping[str, Rule] = CHECKS,
    runner: asyncio.Runner | None = None,
) -> None:
    """Play random sequences on both.

    Args:
        reference: whose behaviour is right.
        other: what is checked.
        plan: what the sequences are made of.
        effort: how many.
        rules: what ``other`` is put to, to name the rule behind a difference.
        runner: whose event loop everything runs on, where the makers need a certain one.

    Raises:
        Difference: the shortest sequence found after which the two differ; its text has both
            answers, the checks that ``other`` fails as well, the sequence as a check, and how to
            play it again.
    """
    with contextlib.ExitStack() as stack:
        loop = (runner or stack.enter_context(asyncio.Runner())).get_loop()
        members: dict[str, Any] = {"sides": (reference, other), "plan": plan, "loop": loop}
        try:
            _play(type("Sequence", (DifferentialMachine,), members), effort)
        except Difference as found:
            replay = replay_on((reference, other), workers=plan.workers, limit_s=plan.limit_s)
            best = loop.run_until_complete(shortest(found, replay))
            broken = loop.run_until_complete(broken_rules(other.make, rules))
            best.args = (best.report(*_notes(other, broken, effort)),)
            raise best from None  # not from the long sequence, which Hypothesis has noted calls on


def _play(machine: type[DifferentialMachine], effort: Effort) -> None:
    with tempfile.TemporaryDirectory() as home:
        configuration.set_hypothesis_home_dir(home)  # it leaves its notes there, not here
        try:
            for batch in range(0, effort.examples, BATCH):
                run_state_machine_as_test(
                    seeded(f"{effort.seed}:{batch}")(machine),
                    settings=_settings(min(BATCH, effort.examples - batch), effort.steps),
                )
        finally:
            configuration.set_hypothesis_home_dir(None)


def _settings(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        print_blob=False,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


def _notes(other: Side, rules: list[str], effort: Effort) -> list[str]:
    named = [f"    {rule}" for rule in rules] or ["    none: no check knows this rule yet"]
    return [
        f"Checks of conformance.engine that {other.name} fails, too:",
        *named,
        f"To play it again: {effort}",
    ]


async def broken_rules(make: EngineMaker, rules: Mapping[str, Rule]) -> list[str]:
    """Return the names of the rules that these engines break."""
    broken = []
    for name, check in rules.items():
        try:
            await asyncio.wait_for(check(make), CHECK_LIMIT_S)
        except Exception:
            broken.append(name)
    return broken
