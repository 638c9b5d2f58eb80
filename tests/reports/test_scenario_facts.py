"""What a scenario set up and found, in words."""

from __future__ import annotations

import pytest
from sample_results import FAILING, make_result

from harness.contracts import CheckResult
from harness.reporting.result_file import Details
from reports.scenario_facts import check_rows, fault_points, one_line, setting

FAULT = {"kind": "reject", "at": "engine.update", "engine": "all", "push": 2, "nth": [1, 2]}
ASKED = {
    "trainer": {"ranks": 4, "tensor_parallel": 2},
    "engines": {"count": 2, "workers": 1, "kind": "fake", "profile": "vllm-0.32"},
    "transport": "nccl",
    "packed": True,
    "pushes": 2,
    "draft": True,
    "timeouts": {"request_s": 1.5},
    "seed": 7,
    "faults": [FAULT, FAULT, {"kind": "kill", "at": "rank.gather"}],
    "restarts": [{"what": "trainer", "before_push": 2}],
}


def test_setting() -> None:
    """Everything that was asked for is said, and nothing that was not."""
    assert setting(Details(scenario=ASKED)) == [
        ("trainer", "4 ranks (TP 2)"),
        ("engines", "2 x 1 workers, fake vllm-0.32"),
        ("transport", "nccl, packed"),
        ("pushes", "2, with a draft model"),
        ("limits", "request 1.5 s"),
        ("seed", "7"),
        ("fault", "reject at engine.update: engine all, push 2, nth 1 and 2"),
        ("fault", "reject at engine.update: engine all, push 2, nth 1 and 2"),
        ("fault", "kill at rank.gather"),
        ("restart", "what trainer, before_push 2"),
    ]
    assert setting(Details()) == []


def test_fault_points() -> None:
    """Each point once; a restart stands for itself, and so does nothing at all."""
    assert fault_points(Details(scenario=ASKED)) == ["engine.update", "rank.gather", "restart"]
    assert fault_points(Details()) == ["no fault"]


# fmt: off
CHECKS = [
    # detail                                                expected    found
    ("outcome: expected resumed, found raised",             "resumed",  "raised"),
    ("expected to be broken, found: torn", "holds", "expected to be broken, found: torn"),
    ("holds",                                               "holds",    "holds"),
    ("version: expected 1 on every engine, found a, b",     "1 on every engine", "a, b"),
]
# fmt: on


@pytest.mark.parametrize(("detail", "expected", "found"), CHECKS)
def test_expected_and_found(detail: str, expected: str, found: str) -> None:
    """A detail that compares is taken apart; another one is what was found."""
    check = CheckResult(name="expect.x", ok=True, detail=detail)
    (row,) = check_rows(make_result("a", checks=(check,)))
    assert (row["expected"], row["found"]) == (expected, found)


def test_failed_checks_come_first() -> None:
    """What decided stands first, then what was waived."""
    assert [row["state"] for row in check_rows(FAILING)] == ["failed", "failed", "waived"]


def test_one_line() -> None:
    """An engine's end names its open sessions."""
    push = {"number": 1, "after": [{"index": 0, "sessions": [True, False]}]}
    result = make_result("a", engines=FAILING.engines[:1])
    assert one_line(result, Details(pushes=(push,))) == (
        'engine 0: "default" paused, weights push 1, session open in 1 of 2 workers'
    )
    assert one_line(make_result("a", engines=()), Details()) == "no engine was seen"
