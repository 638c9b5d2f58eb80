"""Why an expectation was not met, as far as a rank's error tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from harness.contracts import CheckResult
from harness.observation import PushSeen, RankEnding, RunSeen
from harness.scenario import Scenario
from harness.verdicts.expectations import prefix_of

MAX_SHOWN = 240  # characters of an error
SHOWS_ERRORS = (".error", ".names_engine")  # checks that quote the errors of ranks themselves
ON_OUTCOMES = (".outcome", "control.succeeds")  # checks that an error's class alone explains


def with_reasons(
    checks: Iterable[CheckResult], scenario: Scenario, run: RunSeen, control: RunSeen | None
) -> Iterator[CheckResult]:
    """Yield the checks; the first that failed of each push also says what its first rank raised."""
    reasons = _by_check(first_error, scenario, run, control)
    for check in checks:
        of = next((each for each in reasons if check.name.startswith(each)), None)
        if of is None or check.ok or check.name.endswith(SHOWS_ERRORS):
            yield check
        else:
            yield _because(check, reasons.pop(of))


def with_classes(
    checks: Iterable[CheckResult], scenario: Scenario, run: RunSeen, control: RunSeen | None
) -> Iterator[CheckResult]:
    """Yield the checks; an outcome that is not as expected names the class of the first error."""
    classes = _by_check(first_class, scenario, run, control)
    for check in checks:
        of = next((each for each in classes if check.name.startswith(each)), None)
        if of is None or check.ok or not check.name.endswith(ON_OUTCOMES):
            yield check
        else:
            yield _because(check, classes[of])


def first_error(push: PushSeen) -> str | None:
    """Return the error of the lowest rank that has one: its class, and its first line.

    A rank that a fault struck counts only where no other has any.
    """
    if (first := _first(push)) is None:
        return None
    rank, seen = first
    told = f"{seen.error_type}: {seen.error}" if seen.error_type else seen.error
    line = told.partition("\n")[0]
    shown = line if len(line) <= MAX_SHOWN else f"{line[: MAX_SHOWN - 3]}..."
    return f"rank {rank}: {shown}"


def first_class(push: PushSeen) -> str | None:
    """Return the class of the same error, if it has one."""
    if (first := _first(push)) is None or not first[1].error_type:
        return None
    return f"rank {first[0]}: {first[1].error_type}"


def _first(push: PushSeen) -> tuple[int, RankEnding] | None:
    failed = ((seen.struck, rank, seen) for rank, seen in push.ranks.items() if seen.error)
    return next(((rank, seen) for _, rank, seen in sorted(failed, key=lambda each: each[:2])), None)


def _by_check(
    tell: Callable[[PushSeen], str | None],
    scenario: Scenario,
    run: RunSeen,
    control: RunSeen | None,
) -> dict[str, str | None]:
    """Return what is told of each push, by what the names of its checks start with."""
    told = {f"{prefix_of(scenario, push)}.": tell(push) for push in run.pushes}
    if control is not None:
        told["control.succeeds"] = next(filter(None, map(tell, control.pushes)), None)
    return told


def _because(check: CheckResult, reason: str | None) -> CheckResult:
    return check if reason is None else replace(check, detail=f"{check.detail}; {reason}")
