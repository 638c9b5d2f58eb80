"""Shares of the scenarios: each in exactly one of them."""

from __future__ import annotations

import pytest

from harness.errors import UsageError
from harness.shards import Shard


@pytest.mark.parametrize("count", [1, 3, 7])
def test_every_scenario_once(count: int) -> None:
    """The shards are disjoint, make up everything, and differ by at most one."""
    items = list(range(7))
    shards = [Shard(number, count).of(items) for number in range(1, count + 1)]
    assert sorted(item for shard in shards for item in shard) == items
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "a/b", "1/2/3"])
def test_refused(text: str) -> None:
    """What is no share says what one looks like."""
    with pytest.raises(UsageError, match=r"--shard: expected N/M with N from 1 to M, found"):
        Shard.parse(text)


def test_more_shards_than_scenarios() -> None:
    """A share of nothing would be a green job that ran nothing."""
    with pytest.raises(UsageError, match="at most one shard for each of 2 scenarios, found 3"):
        Shard(3, 3).of([1, 2])
