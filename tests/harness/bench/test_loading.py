"""The cost of loading: both ways are measured on files that have no errors."""

from __future__ import annotations

from harness.bench import loading


def test_measure() -> None:
    """Both take some CPU time, and the row says how they compare."""
    found = loading.measure(repeat=1)
    assert min(found.values()) > 0
    (row,) = loading.rows({"checked_s": 0.2, "bare_s": 0.4})
    assert row[1:] == ("0.200 s of CPU", "0.400 s yaml.safe_load", "0.50 x")
