"""The time to a deadlock's name: over which scenarios, and from when to when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from harness.bench.naming import RANKS, deadlocking, named_s, rows


def _event(t: float, event: str, **fields: Any) -> Mapping[str, Any]:
    return {"t": t, "who": "rank:0", "event": event, **fields}


HALT = _event(2.5, "halt", kind="deadlock")


def test_deadlocking() -> None:
    """Every deadlock of the catalogue is measured, and the sketch with 4, 16 and 64 ranks."""
    scenarios = {scenario.name: scenario for scenario in deadlocking()}
    for scenario in scenarios.values():
        assert "deadlock" in {expected.outcome for expected in scenario.expect}
    assert {name.partition("/")[0] for name in scenarios} >= {"controls", "hangs"}
    for ranks in RANKS:
        assert scenarios[f"hangs/sketch[{ranks}]"].trainer.ranks == ranks


# fmt: off
TIMES = [
    # id, events before the halt, seconds
    ("last-progress",        [_event(1.0, "step"), _event(2.0, "gather")],                  0.5),
    ("out-of-order",         [_event(2.0, "gather"), _event(1.0, "step")],                  0.5),
    ("tokens-are-none",      [_event(1.0, "step"), _event(2.4, "token")],                   1.5),
    ("nor-is-the-monitor",   [_event(1.0, "step"), _event(2.4, "diagnosis", kind="slow")],  1.5),
    ("what-comes-after",     [_event(1.0, "step"), _event(9.0, "step")],                    1.5),
]
# fmt: on


@pytest.mark.parametrize(
    ("events", "seconds"), [case[1:] for case in TIMES], ids=[case[0] for case in TIMES]
)
def test_named_s(events: list[Mapping[str, Any]], seconds: float) -> None:
    """It is the time from the last progress of the push to the report."""
    assert named_s([*events, HALT]) == seconds


@pytest.mark.parametrize("event", [_event(2.0, "step"), _event(2.5, "halt", kind="overran")])
def test_nothing_named(event: Mapping[str, Any]) -> None:
    """A scenario that does not deadlock any more is an error, and not a fast one."""
    with pytest.raises(ValueError, match="expected a deadlock to be reported, found none"):
        named_s([_event(1.0, "step"), event])


def test_rows() -> None:
    """All together come first, then each at rest; a broken budget is said so."""
    found = {"at rest": {"a": [0.1, 0.2, 0.3], "b": [0.2]}, "loaded": {"a": [0.2, 1.25]}}
    budget = "budget of 0.3 s, 1 s at most"
    assert rows(found) == [
        ("a deadlock named, at rest, all 2 scenarios", "0.200 s", "0.300 s at most", budget),
        ("  a", "0.200 s", "0.300 s at most", ""),
        ("  b", "0.200 s", "0.200 s at most", ""),
        ("a deadlock named, loaded, all 1 scenarios", "0.725 s", "1.250 s at most",
         f"OVER the {budget}"),
    ]  # fmt: skip
