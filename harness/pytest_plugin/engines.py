"""The engines that a pytest session runs its scenarios on."""

from __future__ import annotations

import pytest

from harness.engine_choice import AS_WRITTEN, BOTH, MOVES, choose
from harness.scenario import Scenario
from harness.wording import unknown

CHOICES = (AS_WRITTEN, *MOVES)


def check_choice(engines: str) -> None:
    """See that a choice is one that tests can have.

    Raises:
        pytest.UsageError: it is not; says which there are.
    """
    if engines == BOTH:
        raise pytest.UsageError(
            f"--resync-engines: expected one of {', '.join(CHOICES)}, found {BOTH}. Each test runs "
            f"on one side; `resync-chaos run --engines {BOTH}` compares the two."
        )
    if engines not in CHOICES:
        raise pytest.UsageError(f"--resync-engines: {unknown(engines, CHOICES)}")


def on_engines(scenario: Scenario, engines: str) -> tuple[Scenario, str | None]:
    """Return the scenario on the chosen engines; or as it is written, and why it stays there."""
    chosen, left_out = choose([scenario], engines)
    return (chosen[0], None) if chosen else (scenario, left_out[0].reason)
