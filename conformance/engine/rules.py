"""What makes a check a rule: its name, what it proves, and what an engine must offer for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from conformance.engine.contract import EngineMaker

Check = Callable[[EngineMaker], Awaitable[None]]


class Need(Enum):
    """What a check may need that not every maker of engines can offer."""

    SERVES = "answers completions"
    EXACT = "checksums that cover every byte of every parameter"
    GPU_LAYERS = "the layer rules of a GPU: a layer stays loadable once it was loaded"
    CPU_LAYERS = "the layer rules of a CPU: linear weights are packed away once they were loaded"
    UNCONFIGURED = "an engine without weight transfer"
    DRAFT = "an engine with a draft model"
    TP2 = "two workers"
    TP4 = "four workers"
    FAILS = "an RPC that fails in a named worker"
    HANGS = "an RPC that hangs in a named worker"
    DIES = "an engine core that dies"
    FRESH = "an engine in a process that served no other"


@dataclass(frozen=True)
class Rule:
    """One check under its name. Call it with a maker.

    Attributes:
        name: ``sessions.finish_says_why``, ``transition[FU-finish]``.
        proves: what it is evidence for: ``facts 1.2``, ``vllm/v1/worker/gpu_worker.py:1592``.
        needs: what the maker must offer.
        check: does it.
    """

    name: str
    proves: tuple[str, ...]
    needs: frozenset[Need]
    check: Check

    async def __call__(self, make: EngineMaker) -> None:
        """Run the check.

        Raises:
            AssertionError: the engine breaks the rule; the message begins with the rule's name
                and with what it was taken from.
        """
        try:
            await self.check(make)
        except AssertionError as error:
            raise AssertionError(f"{self.name} ({'; '.join(self.proves)}): {error}") from error


def proves(*sources: str, needs: Collection[Need] = ()) -> Callable[[Check], Check]:
    """Say what a check proves, and what it needs."""

    def mark(check: Check) -> Check:
        # A mark on the function; its type has no place for one.
        check.rule = (sources, frozenset(needs))  # type: ignore[attr-defined]
        return check

    return mark


def named(name: str, check: Check) -> Rule:
    """Return a check that `proves` has marked as the rule of that name.

    Raises:
        ValueError: nobody said what it proves.
    """
    if not hasattr(check, "rule"):
        raise ValueError(f"{name}: expected a check that says what it proves. Mark it: @proves.")
    sources, needs = check.rule
    return Rule(name, sources, needs, check)


def not_run(rules: Mapping[str, Rule], offers: Collection[Need]) -> dict[str, list[Need]]:
    """Return rule -> what it lacks, of the rules that a maker with these offers cannot run."""
    lacking = {
        name: sorted(rule.needs - set(offers), key=lambda need: need.name)
        for name, rule in rules.items()
    }
    return {name: needs for name, needs in lacking.items() if needs}
