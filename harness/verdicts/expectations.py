"""What a scenario says must be true after each push, against what was seen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from harness.contracts import CheckResult
from harness.observation import EngineSeen, PushSeen, RunSeen
from harness.scenario import Expectation, Scenario


def judge_expectations(scenario: Scenario, run: RunSeen) -> list[CheckResult]:
    """Return one check for each thing that the scenario's ``expect`` says."""
    checks = []
    for push in run.pushes:
        expected = scenario.expectation(push.number)
        prefix = prefix_of(scenario, push)
        for what, wanted, found in _compared(expected, push, scenario.engines.count):
            checks.append(
                CheckResult(
                    name=f"{prefix}.{what}",
                    ok=wanted == found,
                    detail=f"{what}: expected {_say(wanted)}, found {_say(found)}",
                )
            )
        checks += _error_checks(expected, push, prefix)
        if expected.stall is not None:
            found = ", ".join(push.stalls) or "none"
            detail = f"stall: expected {expected.stall} among the stalls, found {found}"
            ok = expected.stall in push.stalls
            checks.append(CheckResult(name=f"{prefix}.stall", ok=ok, detail=detail))
    return checks


def prefix_of(scenario: Scenario, push: PushSeen) -> str:
    """Return what the names of a push's checks start with: ``expect``, or ``expect[2]``."""
    return "expect" if scenario.num_pushes == 1 else f"expect[{push.number}]"


def _compared(
    expected: Expectation, push: PushSeen, num_engines: int
) -> Iterator[tuple[str, Any, Any]]:
    yield "outcome", expected.outcome, push.outcome
    report = push.report()
    if expected.attempts is not None:
        yield "attempts", expected.attempts, 0 if push.connect_failed else report.get("attempts")
    if expected.connect_attempts is not None:
        yield "connect_attempts", expected.connect_attempts, push.connect_attempts
    if expected.retries is not None:
        yield "retries", expected.retries, report.get("retries")
    labels = tuple(engine.label for engine in push.after)
    generations = tuple(generation(engine) for engine in push.after)
    for what, wanted, found in (
        ("version", expected.per_engine("version", num_engines), labels),
        ("generation", expected.per_engine("generation", num_engines), generations),
        ("bytes", expected.per_engine("bytes", num_engines), _reported_bytes(report)),
    ):
        if wanted is not None:
            yield what, wanted, found


def _error_checks(expected: Expectation, push: PushSeen, prefix: str) -> Iterator[CheckResult]:
    raised = {r: seen.error for r, seen in push.ranks.items() if seen.ending == "raised"}
    parts = []
    if expected.error is not None:
        parts.append(("error", expected.error, re.escape(expected.error)))
    if expected.names_engine is not None:
        name = f"engine {expected.names_engine}"
        parts.append(("names_engine", name, rf"\b{name}\b"))  # engine 1 is not engine 12
    for what, part, pattern in parts:
        without = {rank: error for rank, error in raised.items() if not re.search(pattern, error)}
        ok = bool(raised) and not without
        found = "no rank raised" if not raised else f"without it: {without}"
        yield CheckResult(
            name=f"{prefix}.{what}",
            ok=ok,
            detail=f"{what}: expected {part!r} in the error of every rank that raised, "
            + ("found it" if ok else f"found {found}"),
        )


def generation(engine: EngineSeen) -> str:
    """Return ``running``, ``paused``, ``stuck`` or ``dead``."""
    if not engine.alive:
        return "dead"
    if engine.stuck:
        return "stuck"
    return "paused" if engine.paused else "running"


def _reported_bytes(report: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(engine["bytes"] for engine in report.get("engines", ()))


def _say(value: Any) -> str:
    if isinstance(value, tuple):
        alike = set(value)
        words = ", ".join(map(str, value)) or "nothing"
        return f"{value[0]!s} on every engine" if len(alike) == 1 else words
    return str(value)
