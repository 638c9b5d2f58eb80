"""One of several machines' share of the scenarios."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from harness.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """Share ``number``, from 1, of ``count``."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``2/3``.

        Raises:
            UsageError: it is no such thing.
        """
        found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
        number, count = map(int, found.groups()) if found else (0, 0)
        if not 1 <= number <= count:
            raise UsageError(
                f"--shard: expected N/M with N from 1 to M, found {text}. The first of three "
                "machines runs 1/3."
            )
        return cls(number, count)

    def of(self, items: Sequence[T]) -> list[T]:
        """Return every ``count``-th item: neighbours, which take as long, go to different shards.

        Raises:
            UsageError: there are fewer items than shards.
        """
        if len(items) < self.count:
            raise UsageError(
                f"--shard: expected at most one shard for each of {len(items)} scenarios, found "
                f"{self.count}. Use fewer machines, or select more scenarios."
            )
        return list(items[self.number - 1 :: self.count])
