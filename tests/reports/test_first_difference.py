"""Where a run leaves its control."""

from __future__ import annotations

from sample_runs import CALM_EVENTS, EVENTS, call, span

from reports.first_difference import differences
from reports.story import tell


def test_alike() -> None:
    """A run does not differ from itself, nor from one that was slower."""
    slower = [each | {"t": 100 + 3 * each["t"]} for each in CALM_EVENTS]
    assert differences(tell(CALM_EVENTS), tell(slower)) == []


def test_the_fault_comes_first() -> None:
    """The fault is told, then what it caused, each thing once, in the order of time."""
    told = [each.sentence for each in differences(tell(EVENTS), tell(CALM_EVENTS))]
    assert told == [
        "engine 0: a fault strikes: engine.update answers 500",
        "engine 0: request update: 500; in the control: ended well",
        "rank 0: call update to engine 0: failed; in the control: ended well",
    ]


def test_more_and_missing() -> None:
    """A call that the control made once, and one that never ended, are differences."""
    run = [*call(1.0, 1.1, "init"), *call(2.0, 2.1, "init"), *span(3.0, None, "rank:1", "barrier")]
    calm = [*call(1.0, 1.1, "init"), *span(3.0, 3.1, "rank:1", "barrier")]
    first, second = differences(tell(run), tell(calm))
    assert first.sentence == "rank 0: call init to engine 0 comes twice; in the control once"
    assert first.control_at is None
    assert second.sentence == "rank 1: barrier barrier: never ended; in the control: ended well"
    assert second.control_at == 3.1
