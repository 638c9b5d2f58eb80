"""Attempts side by side: where one ends and the next begins, and what was answered."""

from __future__ import annotations

import pytest
from sample_runs import EVENTS, event, request, span

from reports.attempts import attempts_of
from reports.story import tell

PUSH = {"number": 1, "ranks": {"0": {"result": {"causes": [[{"rank": 0, "step": "update"}], []]}}}}


def test_a_resend_is_a_second_attempt() -> None:
    """The first ends with its last step of sending; cleaning up belongs to the second."""
    first, second = attempts_of(tell(EVENTS), [PUSH])
    assert (first.push, first.number, first.begin, first.end) == (1, 1, 10.2, pytest.approx(10.7))
    assert (second.number, second.begin, second.end) == (
        2,
        pytest.approx(10.7),
        pytest.approx(11.9),
    )
    assert first.answers["update"] == {"engine:0": ("500",)}
    assert second.answers["update"] == {"engine:0": ("ok",)}
    assert list(first.answers) == ["pause", "start", "update"]
    assert first.causes == ("rank 0, step update",)
    assert second.causes == ()


def test_target_and_draft_are_one_attempt() -> None:
    """Two sessions in a row, without a clean-up in between, are one attempt."""
    events = [
        *span(1.0, 5.0, "harness", "push", number=1),
        *span(1.1, 1.2, "rank:0", "step", name="agree.start"),
        *span(1.3, 1.4, "rank:0", "step", name="agree.transfer"),
        *span(2.1, 2.2, "rank:0", "step", name="agree.start"),
        *span(2.3, 2.4, "rank:0", "step", name="agree.transfer"),
    ]
    assert len(attempts_of(tell(events), [])) == 1


def test_a_target_without_steps() -> None:
    """A target that names no steps has one attempt a push, and what engines answered is told."""
    events = [
        *span(1.0, None, "harness", "push", number=1),
        *request(1.1, None, "engine:1", "update", None),
        event(3.0, "rank:0", "x"),
    ]
    (only,) = attempts_of(tell(events), [])
    assert (only.begin, only.end) == (1.0, 3.0)
    assert only.answers == {"update": {"engine:1": ("no answer",)}}
