"""The table of fault points."""

from __future__ import annotations

import pytest

from harness.fault_points import FAULT_POINTS, FaultPoint


@pytest.mark.parametrize("point", FAULT_POINTS.values(), ids=list(FAULT_POINTS))
def test_point(point: FaultPoint) -> None:
    """A point belongs to one of the roles, says when it is reached, and is narrowed by its own."""
    assert FAULT_POINTS[point.name] is point
    assert point.role in ("engine", "worker", "rank")
    assert point.reached
    assert set(point.narrowed_by) <= {"worker", "session", "tensor", "name"}
    assert ("worker" in point.narrowed_by) == (point.role == "worker")
