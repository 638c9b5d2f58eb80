"""The time left of a run."""

from __future__ import annotations

import pytest

from reports.eta import Eta, Plan

EARLIER = {"a": 2.0, "b": 4.0, "long": 30.0}


def test_unknown_at_first() -> None:
    """Without an earlier run nothing is known before one has ended."""
    assert Eta(Plan(), 4).left_s({"a": 3.0}, 2) is None


# fmt: off
WITHOUT_EARLIER = [
    # id            ended  running           slots  left_s   (8 in total, each ended took 2 s)
    ("first",       1,     {},               1,     14.0),
    ("two-slots",   2,     {},               2,     6.0),
    ("a-slow-one",  1,     {"slow": 6.0},    2,     25.0),  # 8 s a scenario: 2 + 48 s to share
    ("last",        7,     {"x": 1.0},       4,     8 / 7),  # 15 s for seven, less one
    ("over",        8,     {},               4,     0.0),
]
# fmt: on


@pytest.mark.parametrize(
    ("ended", "running", "slots", "left_s"),
    [case[1:] for case in WITHOUT_EARLIER],
    ids=[case[0] for case in WITHOUT_EARLIER],
)
def test_by_those_that_ended(
    ended: int, running: dict[str, float], slots: int, left_s: float
) -> None:
    """Each is taken to last as long as those that ended, what runs counted in, by slots."""
    eta = Eta(Plan(), 8)
    for number in range(ended):
        eta.add(str(number), 2.0)
    assert eta.left_s(running, slots) == pytest.approx(left_s)


def test_by_an_earlier_run() -> None:
    """An earlier run tells from the first second, and of which one is long."""
    eta = Eta(Plan(earlier_s=EARLIER), 3)
    assert eta.left_s({}, 1) == pytest.approx(36.0)
    assert eta.left_s({"a": 1.0, "b": 1.0}, 2) == pytest.approx((1 + 3 + 30) / 2)
    assert eta.left_s({"long": 10.0, "a": 0.0}, 2) == pytest.approx(20.0)  # nobody can share it


def test_a_slower_machine() -> None:
    """Those that ended say how much slower this run is than the earlier one."""
    eta = Eta(Plan(earlier_s={str(n): 1.0 for n in range(100)}), 100)
    for number in range(50):
        eta.add(str(number), 3.0)
    assert eta.left_s({}, 2) == pytest.approx(25 * 155 / 55)


def test_one_that_is_new() -> None:
    """A scenario without an earlier time takes the mean of the others."""
    eta = Eta(Plan(earlier_s=EARLIER), 4)
    assert eta.left_s({}, 1) == pytest.approx(48.0)
