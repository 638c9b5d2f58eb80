"""Shrinks a difference to the shortest sequence that still shows one.

Hypothesis shrinks the choices behind a sequence and plays it again hundreds of times. A sequence is
known call by call here, and each replay needs two fresh engines, so this leaves calls out instead:
some tens of replays, which matters where an engine is a real server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from conformance.differential.calls import Call, Later, Starve, Update
from conformance.differential.difference import Difference
from conformance.differential.duel import Duel
from conformance.differential.sides import Side

MAX_FOR_PAIRS = 9  # 36 replays

Replay = Callable[[Sequence[Call], Mapping[str, int]], Awaitable[Difference | None]]


def replay_on(sides: tuple[Side, Side], *, workers: int, limit_s: float) -> Replay:
    """Return what plays a sequence on fresh engines and returns the difference, if there is one."""

    async def replay(calls: Sequence[Call], failing: Mapping[str, int]) -> Difference | None:
        duel = Duel(sides, workers=workers, failing=failing, limit_s=limit_s)
        careful = any(isinstance(call, Later | Starve) for call in calls)
        try:
            await duel.open()
            for number, call in enumerate(calls, start=1):
                if not duel.may(call):
                    return None
                await duel.play(call, look=careful or number == len(calls))
        except Difference as difference:
            return difference
        finally:
            await duel.close()
        return None

    return replay


async def shortest(found: Difference, replay: Replay) -> Difference:
    """Return the difference with the fewest and simplest calls; ``found`` if it does not repeat."""
    again = await replay(found.calls, found.failing)
    if again is None:
        return found
    best = again
    if best.failing and (without := await replay(best.calls, {})) is not None:
        best = without
    best = await _fewer(best, replay)
    for position in range(len(best.calls)):
        if position >= len(best.calls):
            break
        for simpler in best.calls[position].simpler():
            calls = [*best.calls[:position], simpler, *best.calls[position + 1 :]]
            if (other := await replay(calls, best.failing)) is not None:
                best = other
                break
    return best


async def _fewer(best: Difference, replay: Replay) -> Difference:
    size = max(1, len(best.calls) // 2)
    while True:
        start, shrunk = len(best.calls) - size, False
        while start >= 0:
            calls = renumbered([*best.calls[:start], *best.calls[start + size :]])
            if (other := await replay(calls, best.failing)) is not None:
                best, shrunk = other, True
            start = min(start, len(best.calls)) - size  # it may differ sooner now
        if size == 1 and not shrunk:
            break
        size = max(1, size // 2)
    return await _without_two(best, replay)


async def _without_two(best: Difference, replay: Replay) -> Difference:
    """Leave two calls out at once, which one alone would not allow: a start and its finish."""
    if len(best.calls) > MAX_FOR_PAIRS:
        return best
    for one, two in combinations(range(len(best.calls)), 2):
        calls = [call for place, call in enumerate(best.calls) if place not in (one, two)]
        if (other := await replay(renumbered(calls), best.failing)) is not None:
            return await _without_two(other, replay)
    return best


def renumbered(calls: Sequence[Call]) -> list[Call]:
    """Return the calls with their updates sending steps 1, 2, ... in order."""
    step, result = 0, list[Call]()
    for call in calls:
        if isinstance(call, Update):
            step += 1
            call = replace(call, step=step)
        result.append(call)
    return result
