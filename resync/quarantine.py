"""Going on without an engine that cannot be given weights, where the trainer wants that.

An engine that is stuck, dead or in need of a restart fails every push that includes it. Under
``on_stuck="quarantine"`` it is set aside instead: it gets no weights, no version and no resume, and
the push goes on with the others over a channel that it is no member of. It comes back at the start
of a later push, once it answers and, if it was stuck, was restarted; it is then a new engine to us:
it joins a new channel and gets the whole model like the others.

A quarantined engine that was paused stays paused. One that somebody restarts meanwhile generates
from the weights that it was started with until the next push: keep requests from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from resync.engine_control import EngineControl
from resync.errors import EngineError, EngineLost, EngineNeedsRestart, EngineTimeout, FleetError
from resync.fleet import Fleet

logger = logging.getLogger("resync")

ON_STUCK = ("raise", "quarantine")


def set_aside(fleet: Fleet, failures: Sequence[EngineError]) -> None:
    """Quarantine the engines that failed, if others are left.

    Raises:
        FleetError: there would be none left; it holds the failures.
    """
    failed = {failure.engine for failure in failures}
    if not any(engine.index not in failed for engine in fleet.active):
        raise FleetError(failures)
    for engine in fleet.active:
        if engine.index in failed:
            why = "; ".join(str(f) for f in failures if f.engine == engine.index)
            engine.quarantined = why
            logger.error(
                "engine %d is quarantined, and the push goes on without it. It comes back with a "
                "later push, once it answers and, if it was stuck, was restarted. %s",
                engine.index,
                why,
            )


def is_beyond_a_push(failure: EngineError) -> bool:
    """Whether nothing that this push could do would bring the engine back.

    An engine that did not answer in time may do so a moment later, and may be running.
    """
    if isinstance(failure, EngineTimeout):
        return False
    return isinstance(failure, EngineNeedsRestart | EngineLost)


def readmit(fleet: Fleet) -> list[int]:
    """Take back the quarantined engines that answer again; each look is bounded by ``settle_s``.

    Returns:
        Those that came back: each must join a new channel and be given the whole model.
    """
    waiting = [engine for engine in fleet.engines if engine.quarantined is not None]

    async def look(engine: EngineControl) -> None:
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(fleet.timeouts.settle_s):
                was_stuck = engine.is_stuck
                if was_stuck:
                    await engine.require_restarted()
                await engine.line.until_idle("readmit")
                paused, label = await engine.look()
                if was_stuck or label not in engine.expected_labels:
                    engine.forget(paused=paused)
                await engine.replies.require_room("readmit")
                engine.session = engine.session_found(paused=paused)
                engine.expected_labels = frozenset({label})
                engine.quarantined = None

    fleet.each(look, engines=waiting)
    return [engine.index for engine in waiting if engine.quarantined is None]
