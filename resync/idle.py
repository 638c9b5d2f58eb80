"""When an engine that left a request unanswered has come to rest.

vLLM does not give a request up when its client does, and its core works through requests one by
one. So after a time-out the engine may still start, load or finish, and whatever is sent meanwhile
waits behind that and takes effect later, perhaps in the middle of the resend. The gauge of weight
operations in flight tells, since the metrics are served past the core; what it does not count
(pause, resume, a probe) is told by a request that goes through the core behind it.

Source: vLLM 0.32, ``entrypoints/rl/online/metrics.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

GAUGE = "vllm:rl_weight_update_operations_in_flight"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0  # between two looks at the gauge
LOOKS = 20  # at least this many within a limit


def in_flight(metrics: str) -> float | None:
    """Return the gauge, summed over the operations; ``None`` where it is absent.

    It is absent until the first weight operation of the engine's process.

    Args:
        metrics: an exposition in Prometheus text.
    """
    values = [
        float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith((f"{GAUGE}{{", f"{GAUGE} "))
    ]
    return sum(values) if values else None


async def wait_until_idle(
    gauge: Callable[[], Awaitable[float | None]],
    round_trip: Callable[[], Awaitable[None]],
    *,
    limit_s: float,
) -> None:
    """Return once nothing is in flight, the core has answered, and still nothing is in flight.

    Args:
        gauge: reads `in_flight`.
        round_trip: a request that changes nothing and goes through the core.
        limit_s: how long to wait.

    Raises:
        TimeoutError: it did not come to that.
    """
    pause_s, longest_s = FIRST_PAUSE_S, min(LONGEST_PAUSE_S, limit_s / LOOKS)
    async with asyncio.timeout(limit_s):
        while True:
            if not await gauge():
                await round_trip()
                if not await gauge():
                    return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)
