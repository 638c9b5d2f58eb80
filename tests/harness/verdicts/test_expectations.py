"""Every field of an expectation, met and not met."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from observed import (
    dead,
    failed_push,
    halt,
    killed,
    make_push,
    make_run,
    make_scenario,
    paused,
    raised,
    returned,
    serving,
)

from harness.observation import PushSeen
from harness.scenario import Expectation
from harness.verdicts.expectations import judge_expectations

GOOD = make_push(connect_attempts=1)
TWO = (serving(), serving(label="0", index=1))
REPORT = {"attempts": 2, "retries": 1, "engines": [{"bytes": "dirty"}, {"bytes": "stuck"}]}
SENT_TWICE = make_push(1, returned(result=REPORT), returned(result={}))
CONNECT_FAILED = failed_push(connect_failed=True, connect_attempts=2)
NAMING = failed_push(1, raised("engine 1: refused"), raised("rank 0, engine 1: refused"))
NAMING_12 = failed_push(1, raised("engine 12: refused"), raised("engine 12: refused"))
ONE_TELLS = failed_push(1, raised("engine 1: refused"), raised("peer lost"))
STRUCK = failed_push(1, raised("engine 1 refused"), killed())

# fmt: off
CASES = [
    # id, expected beside the outcome, the push, the check that fails (none: all hold)
    ("resumed", {"outcome": "resumed"}, GOOD, ""),
    ("raised", {"outcome": "raised"}, failed_push(), ""),
    ("deadlock", {"outcome": "deadlock"}, failed_push(halted=halt()), ""),
    ("mixed", {"outcome": "mixed"}, make_push(1, returned(), raised()), ""),
    ("not-resumed", {"outcome": "resumed"}, failed_push(),
     "outcome: expected resumed, found raised"),
    ("not-deadlocked", {"outcome": "deadlock"}, failed_push(),
     "outcome: expected deadlock, found raised"),
    ("overran-is-no-deadlock", {"outcome": "deadlock"}, failed_push(halted=halt("overran")),
     "outcome: expected deadlock, found overran"),

    ("attempts", {"attempts": 2}, SENT_TWICE, ""),
    ("attempts-not", {"attempts": 2}, GOOD, "attempts: expected 2, found 1"),
    ("attempts-untold", {"attempts": 1}, make_push(1, returned(result={})),
     "attempts: expected 1, found None"),
    ("no-attempt-where-the-connect-failed", {"outcome": "raised", "attempts": 0},
     CONNECT_FAILED, ""),
    ("connect-attempts", {"outcome": "raised", "connect_attempts": 2}, CONNECT_FAILED, ""),
    ("connect-attempts-not", {"connect_attempts": 2}, GOOD,
     "connect_attempts: expected 2, found 1"),
    ("connect-attempts-none", {"connect_attempts": 1}, make_push(),
     "connect_attempts: expected 1, found None"),
    ("retries", {"retries": 1}, SENT_TWICE, ""),
    ("retries-not", {"retries": 1}, GOOD, "retries: expected 1, found 0"),

    ("version", {"version": "1"}, GOOD, ""),
    ("version-not", {"version": "2"}, GOOD,
     "version: expected 2 on every engine, found 1 on every engine"),
    ("version-of-all", {"version": "1"}, make_push(after=TWO),
     "version: expected 1 on every engine, found 1, 0"),
    ("version-each", {"version": ("1", "0")}, make_push(after=TWO), ""),
    ("version-each-not", {"version": ("0", "1")}, make_push(after=TWO),
     "version: expected 0, 1, found 1, 0"),
    ("version-of-the-dead", {"version": ("1", "1")}, make_push(after=(serving(), dead(index=1))),
     "version: expected 1 on every engine, found 1, None"),
    ("generation", {"outcome": "raised", "generation": "paused"}, failed_push(), ""),
    ("generation-each", {"generation": ("running", "dead", "stuck", "paused")},
     make_push(after=(serving(), dead(), serving(stuck=True), paused())), ""),
    ("generation-not", {"generation": "running"}, make_push(after=(paused(1),)),
     "generation: expected running on every engine, found paused on every engine"),
    ("bytes", {"bytes": "committed"}, GOOD, ""),
    ("bytes-each", {"bytes": ("dirty", "stuck")}, SENT_TWICE, ""),
    ("bytes-not", {"bytes": ("stuck", "dirty")}, SENT_TWICE,
     "bytes: expected stuck, dirty, found dirty, stuck"),
    ("bytes-untold", {"bytes": "committed"}, make_push(1, returned(result={})),
     "bytes: expected committed on every engine, found nothing"),

    ("error", {"outcome": "raised", "error": "(refused"},
     failed_push(1, raised("a (refused) start")), ""),
    ("error-not", {"outcome": "raised", "error": "refused"}, failed_push(),
     "error: expected 'refused' in the error of every rank that raised, found without it: "
     "{0: 'it failed', 1: 'it failed'}"),
    ("error-on-one-rank-only", {"outcome": "raised", "error": "refused"}, ONE_TELLS,
     "error: expected 'refused' in the error of every rank that raised, found without it: "
     "{1: 'peer lost'}"),
    ("error-but-nobody-raised", {"outcome": "deadlock", "error": "refused"},
     failed_push(1, returned(), halted=halt()),
     "error: expected 'refused' in the error of every rank that raised, found no rank raised"),
    ("error-on-every-survivor", {"outcome": "raised", "error": "refused"}, STRUCK, ""),
    ("names-engine", {"outcome": "raised", "names_engine": 1}, NAMING, ""),
    ("names-another", {"outcome": "raised", "names_engine": 1}, NAMING_12,
     "names_engine: expected 'engine 1' in the error of every rank that raised, found without it: "
     "{0: 'engine 12: refused', 1: 'engine 12: refused'}"),
    ("names-engine-on-one-rank-only", {"outcome": "raised", "names_engine": 1}, ONE_TELLS,
     "names_engine: expected 'engine 1' in the error of every rank that raised, found without it: "
     "{1: 'peer lost'}"),
]
# fmt: on


@pytest.mark.parametrize(
    ("expected", "push", "detail"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_expectations(expected: Mapping[str, Any], push: PushSeen, detail: str) -> None:
    """What a scenario expects is checked field by field, and what it does not say is not."""
    scenario = make_scenario(
        expect={"outcome": "resumed", **expected}, engines={"count": len(push.after)}
    )
    checks = judge_expectations(scenario, make_run(push))
    assert [check.name.removeprefix("expect.") for check in checks] == list(
        {"outcome": None, **expected}
    )
    assert [check.detail for check in checks if not check.ok] == ([detail] if detail else [])


def test_an_expectation_for_each_push() -> None:
    """With several pushes each is judged by its own expectation, or all by the only one."""
    run = make_run(make_push(), failed_push(2))
    each = (Expectation(outcome="resumed"), Expectation(outcome="raised"))
    checks = judge_expectations(make_scenario(pushes=2, expect=None).model_copy(
        update={"expect": each}), run)  # fmt: skip
    assert [(check.name, check.ok) for check in checks] == [
        ("expect[1].outcome", True),
        ("expect[2].outcome", True),
    ]
    checks = judge_expectations(make_scenario(pushes=2), run)
    assert [check.ok for check in checks] == [True, False]
