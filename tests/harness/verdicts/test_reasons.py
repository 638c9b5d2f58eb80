"""Why an expectation was not met, as far as a rank's error tells it."""

from __future__ import annotations

import pytest
from observed import (
    died,
    failed_push,
    killed,
    make_push,
    make_run,
    make_scenario,
    raised,
    returned,
)

from harness.contracts import CheckResult
from harness.observation import PushSeen, RankEnding
from harness.verdicts.reasons import MAX_SHOWN, first_error, with_classes, with_reasons

LOST = raised("the peer is lost", error_type="PeerLost")
LONG = "x" * MAX_SHOWN
# fmt: off
ERRORS = [
    # id, push, the error that is shown
    ("none", make_push(), None),
    ("class", failed_push(1, LOST, raised("later")), "rank 0: PeerLost: the peer is lost"),
    ("no-class", failed_push(1, raised("it failed")), "rank 0: it failed"),
    ("first-line", failed_push(1, raised("refused\nTraceback")), "rank 0: refused"),
    ("cut", failed_push(1, raised(f"{LONG}!")), f"rank 0: {LONG[3:]}..."),
    ("just-fits", failed_push(1, raised(LONG)), f"rank 0: {LONG}"),
    ("the-first-that-has-one", make_push(1, returned(), LOST), "rank 1: PeerLost: the peer is "
     "lost"),
    ("died", make_push(1, returned(), died()), "rank 1: ended with status 3: its last words"),
    ("struck-says-less", failed_push(1, raised("struck", struck=True), LOST),
     "rank 1: PeerLost: the peer is lost"),
    ("struck-says-more-than-nothing", failed_push(1, raised("struck", struck=True), returned()),
     "rank 0: struck"),
    ("killed", failed_push(1, killed(), LOST), "rank 1: PeerLost: the peer is lost"),
]
# fmt: on


@pytest.mark.parametrize(
    ("push", "shown"), [case[1:] for case in ERRORS], ids=[case[0] for case in ERRORS]
)
def test_first_error(push: PushSeen, shown: str | None) -> None:
    """The lowest rank's error is shown with its class: one line, that of a survivor if it can."""
    assert first_error(push) == shown


def _check(name: str, *, ok: bool = False) -> CheckResult:
    return CheckResult(name=name, ok=ok, detail="it is not so")


TOLD = "it is not so; rank 0: PeerLost: the peer is lost"
# fmt: off
CHECKS = [
    # id, number of pushes, checks, their details
    ("first-only", 1, [_check("expect.outcome"), _check("expect.version")],
     [TOLD, "it is not so"]),
    ("met", 1, [_check("expect.outcome", ok=True), _check("expect.attempts")],
     ["it is not so", TOLD]),
    ("quotes-errors-itself", 1, [_check("expect.error"), _check("expect.names_engine")],
     ["it is not so", "it is not so"]),
    ("invariant", 1, [_check("invariant.clean_push")], ["it is not so"]),
    ("each-push", 2, [_check("expect[1].outcome"), _check("expect[2].outcome")],
     ["it is not so", TOLD]),
    ("control", 1, [_check("control.succeeds")],
     ["it is not so; rank 0: the control failed"]),
]
# fmt: on


@pytest.mark.parametrize(
    ("num_pushes", "checks", "details"), [c[1:] for c in CHECKS], ids=[c[0] for c in CHECKS]
)
def test_with_reasons(num_pushes: int, checks: list[CheckResult], details: list[str]) -> None:
    """The first expectation of a push that is not met says what was raised, and no other does."""
    last = failed_push(num_pushes, LOST)
    run = make_run(*(make_push(number) for number in range(1, num_pushes)), last)
    control = make_run(make_push(), failed_push(2, raised("the control failed")), closing=None)
    found = with_reasons(checks, make_scenario(pushes=num_pushes), run, control)
    assert [check.detail for check in found] == details


# fmt: off
CLASSES = [
    # id, check, error of the push, what is told beside it
    ("outcome", _check("expect.outcome"), LOST, "; rank 0: PeerLost"),
    ("no-class", _check("expect.outcome"), raised("it failed"), ""),
    ("met", _check("expect.outcome", ok=True), LOST, ""),
    ("attempts", _check("expect.attempts"), LOST, ""),
    ("invariant", _check("invariant.clean_push"), LOST, ""),
    ("control", _check("control.succeeds"), LOST, "; rank 0: OfTheControl"),
]
# fmt: on


@pytest.mark.parametrize(
    ("check", "error", "told"), [case[1:] for case in CLASSES], ids=[case[0] for case in CLASSES]
)
def test_with_classes(check: CheckResult, error: RankEnding, told: str) -> None:
    """An outcome that is not as expected names the class of what was raised, and nothing else."""
    control = make_run(failed_push(1, raised(error_type="OfTheControl")), closing=None)
    (found,) = with_classes([check], make_scenario(), make_run(failed_push(1, error)), control)
    assert found.detail == f"it is not so{told}"
