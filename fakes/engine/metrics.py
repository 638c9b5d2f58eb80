"""The gauge of weight operations in flight, in Prometheus text.

It never touches the core, so it can be read while a worker is stuck. As in vLLM it is absent until
the first weight operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

IN_FLIGHT = "vllm:rl_weight_update_operations_in_flight"


class WeightOperations:
    """Counts the weight operations that are awaited now, by operation."""

    def __init__(self) -> None:
        self._in_flight: Counter[str] = Counter()

    @contextmanager
    def record(self, operation: str) -> Iterator[None]:
        """Count one operation for as long as the block runs."""
        self._in_flight[operation] += 1
        try:
            yield
        finally:
            self._in_flight[operation] -= 1

    def render(self) -> str:
        """Return the exposition text."""
        if not self._in_flight:
            return ""
        lines = [
            f"# HELP {IN_FLIGHT} Weight-transfer operations currently awaited.",
            f"# TYPE {IN_FLIGHT} gauge",
        ]
        for operation, count in sorted(self._in_flight.items()):
            lines.append(f'{IN_FLIGHT}{{operation="{operation}"}} {float(count)}')
        return "\n".join(lines) + "\n"
