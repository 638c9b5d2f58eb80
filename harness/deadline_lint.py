"""Points out scenarios whose time-outs are ordered so that they cannot prove what they say.

Each rule takes one scenario and yields what to doubt, as ``expected ..., found ... . <next step>``.
A doubt stops no run: `resync-chaos check` and `run` print it as a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.fault_points import FAULT_POINTS
from harness.faults import FAULTS
from harness.scenario import FaultSpec, Scenario
from harness.yaml_document import Place, Problem

MARGIN = 0.05  # of a limit: a wait that ends so close to it may end on either side


def lint(scenario: Scenario) -> list[Problem]:
    """Return what to doubt about a valid scenario's time-outs."""
    return [problem for rule in _RULES for problem in rule(scenario)]


def _peers_outlast_a_request(scenario: Scenario) -> Iterator[Problem]:
    """Peers wait in a collective while the sender waits for a request."""
    limits = scenario.timeouts
    if scenario.trainer.ranks > 1 and limits.process_group_s <= limits.request_s:
        yield _problem(
            ("timeouts", "process_group_s"),
            f"more than request_s ({limits.request_s:g} s), for which peers wait in a collective",
            f"{limits.process_group_s:g} s, so that the collective ends before the request does",
            "Raise process_group_s, or lower request_s.",
        )


def _rendezvous_answers(scenario: Scenario) -> Iterator[Problem]:
    """A worker that waits longer than the init request lasts never gets to say that it gave up."""
    limits = scenario.timeouts
    matters = "rendezvous_s" in limits.model_fields_set or any(
        fault.at in ("engine.init", "worker.init") for fault in scenario.faults
    )
    if scenario.transport == "nccl" and matters and limits.rendezvous_s >= limits.init_s:
        yield _problem(
            ("timeouts", "rendezvous_s"),
            f"less than init_s ({limits.init_s:g} s), so that a worker's answer comes before the "
            f"request ends",
            f"{limits.rendezvous_s:g} s",
            "Lower rendezvous_s, or raise init_s.",
        )


def _deadline_outlasts_the_waits(scenario: Scenario) -> Iterator[Problem]:
    """A run that is cut off before its time-outs end never shows what the target does then."""
    limits = scenario.timeouts
    waits = {
        "timeouts.request_s": limits.request_s,
        "timeouts.init_s": limits.init_s,
        "what slow faults take": sum(_visits(fault) * fault.delay_s for fault in scenario.faults),
    }
    if any(_stops_a_rank(fault) for fault in scenario.faults):
        waits["timeouts.process_group_s, which frees the peers of a rank that stops"] = (
            limits.process_group_s
        )
    what, longest_s = max(waits.items(), key=lambda wait: wait[1])
    if scenario.limit_s > longest_s:
        return
    given = scenario.deadline_s is not None
    yield _problem(
        ("deadline_s",) if given else ("timeouts",),
        f"a deadline that outlasts {what} ({longest_s:g} s)",
        f"{scenario.limit_s:g} s" + ("" if given else ", which follows from init_s and request_s"),
        "Raise deadline_s, or lower that limit." if given else "Set deadline_s, or lower it.",
    )


def _slow_is_what_it_says(scenario: Scenario) -> Iterator[Problem]:
    """A delay beyond the limit is a time-out, and one within it is none."""
    for push in range(1, scenario.num_pushes + 1):
        faults = _faults_of(scenario, push)
        if not faults or any(fault.options().get("seconds") is None for _, fault in faults):
            continue  # what the others do may be what is expected
        for number, fault in faults:
            name, limit_s = _limit_of(scenario, fault)
            delay_s = _delay_s(fault)
            if abs(delay_s - limit_s) <= MARGIN * limit_s:
                yield _problem(
                    ("faults", number, "seconds"),
                    f"a delay well below or well above {name} ({limit_s:g} s)",
                    f"{delay_s:g} s, which may end on either side of it",
                    "Move them apart.",
                )
        yield from _expected_of_delays(scenario, faults, push)


def _expected_of_delays(
    scenario: Scenario,
    faults: list[tuple[int, FaultSpec]],
    push: int,
) -> Iterator[Problem]:
    expected = scenario.expectation(push)
    limits = [(number, fault, *_limit_of(scenario, fault)) for number, fault in faults]
    late = [each for each in limits if _delay_s(each[1]) >= each[3]]
    calm = expected.outcome == "resumed" and expected.attempts in (0, 1) and not expected.retries
    if late and calm:
        number, fault, name, limit_s = late[0]
        yield _problem(
            ("faults", number, "seconds"),
            f"less than {name} ({limit_s:g} s), since the push is expected to succeed at once",
            f"{_delay_s(fault):g} s, which is a time-out",
            f"Lower seconds, raise {name.rpartition('.')[2]}, or expect a retry or a resend.",
        )
    # What struck before may still be felt, and a delay may be all that a bad target needs.
    alone = not scenario.before_connect and not scenario.restarts and scenario.target is None
    alone = alone and all(fault.push not in range(1, push) for fault in scenario.faults)
    troubled = expected.outcome == "raised" or (expected.attempts or 0) > 1 or expected.retries
    if not late and troubled and alone:
        number, fault, name, limit_s = limits[0]
        yield _problem(
            ("faults", number, "seconds"),
            f"more than {name} ({limit_s:g} s), since push {push} is expected to notice it",
            f"{_delay_s(fault):g} s, within which everything still succeeds",
            f"Raise seconds, or lower {name.rpartition('.')[2]}.",
        )


def _faults_of(scenario: Scenario, push: int) -> list[tuple[int, FaultSpec]]:
    pushes = (0, 1) if push == 1 else (push,)
    return [(n, fault) for n, fault in enumerate(scenario.faults) if fault.push in pushes]


def _limit_of(scenario: Scenario, fault: FaultSpec) -> tuple[str, float]:
    """Return what ends the wait for somebody who is slow at the fault's point."""
    limits = scenario.timeouts
    if FAULT_POINTS[fault.at].role == "rank":
        return "timeouts.process_group_s", limits.process_group_s
    if fault.at in ("engine.init", "worker.init"):
        return "timeouts.init_s", limits.init_s
    return "timeouts.request_s", limits.request_s


def _delay_s(fault: FaultSpec) -> float:
    """Return how long it delays one wait: a worker is visited more than once in one request."""
    return fault.delay_s * (_visits(fault) if FAULT_POINTS[fault.at].role == "worker" else 1)


def _visits(fault: FaultSpec) -> int:
    return 1 if fault.nth == "always" else len(fault.nth)


def _stops_a_rank(fault: FaultSpec) -> bool:
    """Whether a rank never leaves a point where its peers wait for it in the trainer's group."""
    return fault.at in ("rank.gather", "rank.barrier") and FAULTS[fault.kind].never_returns


def _problem(place: Place, expected: str, found: str, next_step: str) -> Problem:
    return Problem(place, f"expected {expected}, found {found}. {next_step}")


_RULES: tuple[Callable[[Scenario], Iterator[Problem]], ...] = (
    _peers_outlast_a_request,
    _rendezvous_answers,
    _deadline_outlasts_the_waits,
    _slow_is_what_it_says,
)
