"""Which engines a run's scenarios get: those of their files, or the same scenarios on others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.contracts import Json
from harness.gpus import why_not
from harness.scenario import Scenario
from harness.scenario_checks import Parts, check

AS_WRITTEN, BOTH = "as-written", "both"
# What a scenario's `engines` become when a run moves it; the name of the choice marks its name.
MOVES: Mapping[str, Mapping[str, Json]] = {
    "vllm": {"kind": "vllm"},
    "vllm-next": {"profile": "vllm-next"},
}
CHOICES = (AS_WRITTEN, *MOVES, BOTH)


@dataclass(frozen=True)
class LeftOut:
    """A scenario that makes no sense on other engines, and why."""

    name: str
    reason: str


def choose(scenarios: Sequence[Scenario], engines: str) -> tuple[list[Scenario], list[LeftOut]]:
    """Return the scenarios to run, and those that the chosen engines cannot be asked for.

    Args:
        scenarios: as their files say.
        engines: ``as-written``; ``vllm`` or ``vllm-next``, which move every scenario to real
            engines or to fakes under the next rules; or ``both``, which runs each on the engines of
            its file and, where it makes sense, on real ones.
    """
    if engines == AS_WRITTEN:
        return list(scenarios), []
    chosen: list[Scenario] = list(scenarios) if engines == BOTH else []
    left_out: list[LeftOut] = []
    choice = "vllm" if engines == BOTH else engines
    for scenario in scenarios:
        if scenario.engines.model_copy(update=MOVES[choice]) == scenario.engines:
            chosen += [] if engines == BOTH else [scenario]
            continue
        moved = move(scenario, choice)
        if isinstance(moved, LeftOut):
            left_out.append(moved)
        else:
            chosen.append(moved)
    return chosen, left_out


def placeable(scenarios: Sequence[Scenario], num_gpus: int) -> tuple[list[Scenario], list[LeftOut]]:
    """Return the scenarios that so many GPUs are enough for, and the others.

    Fake engines, which a run on both has beside the real ones, need none.
    """
    chosen: list[Scenario] = []
    left_out: list[LeftOut] = []
    for scenario in scenarios:
        reason = why_not(scenario, num_gpus) if scenario.engines.kind == "vllm" else None
        if reason is None:
            chosen.append(scenario)
        else:
            left_out.append(LeftOut(scenario.name, reason))
    return chosen, left_out


def move(scenario: Scenario, choice: str) -> Scenario | LeftOut:
    """Return the same scenario on other engines, under the name that `moved_name` gives it."""
    for where, reason in scenario.only_as_written.items():
        if where == choice:
            return LeftOut(scenario.name, reason)
    engines = scenario.engines.model_copy(update=MOVES[choice])
    parts = Parts(trainer=scenario.trainer, engines=engines, draft=scenario.draft)
    problems = [problem.message for problem in check(parts)]
    if problems:
        return LeftOut(scenario.name, problems[0])
    moved = scenario.model_copy(update={"engines": engines})
    return moved.named(moved_name(scenario.name, choice), scenario.path)


def moved_name(name: str, choice: str) -> str:
    """Return ``folder/file@vllm[cell]`` for ``folder/file[cell]``."""
    file, bracket, cell = name.partition("[")
    return f"{file}@{choice}{bracket}{cell}"


def name_in_file(name: str) -> str:
    """Return a name, or a pattern of names, as the files have it: without the mark of a move."""
    for choice in sorted(MOVES, key=len, reverse=True):
        name = name.replace(f"@{choice}", "")
    return name


def pairs(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the scenarios of a run that ran on both: the name on the fake and on the real one."""
    known = set(names)
    moved = ((name, moved_name(name, "vllm")) for name in sorted(known))
    return [(name, real) for name, real in moved if real in known]
