"""The lines that say where fake and real engines ended differently."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from sample_results import engine, make_result

from harness.contracts import EngineFinal, Verdict
from reports.differences import compare, differences

FAKE = make_result("a[x]")


def _paused(weights: str) -> EngineFinal:
    return EngineFinal(index=0, version="default", generation="paused", weights=weights)


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        ({}, []),
        ({"seconds": 9.0, "sentence": "Other words."}, []),
        ({"verdict": Verdict.HANG}, ["a[x]: verdict: fake pass, real hang"]),
        ({"outcomes": ("raised",)}, ["a[x]: outcomes: fake resumed, real raised"]),
        ({"attempts": (1,)}, ["a[x]: attempts: fake 2, real 1"]),
        (
            {"engines": (engine(0), engine(1, None, "dead"))},
            ["a[x]: engine 1: fake 1, running, push 1; real None, dead, push 1"],
        ),
    ],
)
def test_differences(fields: dict[str, Any], lines: list[str]) -> None:
    """What a scenario ended with is compared, not how long it took."""
    assert list(differences(FAKE, make_result("a@vllm[x]", **fields))) == lines


def test_weights_that_cannot_be_seen() -> None:
    """A paused real engine does not show its weights; what it shows is compared all the same."""
    fake = make_result("a[x]", engines=(_paused("mixed"),))
    assert list(differences(fake, make_result("b", engines=(_paused("unknown"),)))) == []
    assert len(list(differences(fake, make_result("b", engines=(_paused("push 1"),))))) == 1


def test_compare() -> None:
    """Each difference is a line, and one line counts the scenarios."""
    results = {
        "a[x]": FAKE,
        "a@vllm[x]": make_result("a@vllm[x]"),
        "b": make_result("b"),
        "b@vllm": make_result("b@vllm", verdict=Verdict.FAIL, attempts=(1,)),
    }
    alike = [("a[x]", "a@vllm[x]")]
    for pairs, told, ok in (
        (alike, ["fake and real engines: 1 of 1 scenarios ended alike"], True),
        (
            [*alike, ("b", "b@vllm")],
            [
                "differs b: verdict: fake pass, real fail",
                "differs b: attempts: fake 2, real 1",
                "fake and real engines: 1 of 2 scenarios ended alike",
            ],
            False,
        ),
    ):
        console = Console(file=io.StringIO(), width=200)
        assert compare(pairs, results, console) is ok
        assert console.file.getvalue().splitlines() == told  # type: ignore[attr-defined]
