"""Generation around a push: freeze it before, publish the version, let it go on after.

Everything here runs on the senders alone, each for its engines, as the work of an agreed step.
"""

from __future__ import annotations

import logging

from resync.agreement import Code
from resync.engine_control import EngineControl
from resync.errors import (
    EngineError,
    EngineLost,
    EngineMismatch,
    EngineNeedsRestart,
    EngineTimeout,
    FleetError,
)
from resync.fleet import Fleet
from resync.quarantine import is_beyond_a_push, readmit, set_aside
from resync.report import Bytes, PushReport

logger = logging.getLogger("resync")


def quiesce(fleet: Fleet, *, quarantines: bool = False) -> None:
    """Pause and flush every engine; `restore` lets those run again that were running.

    Sets ``fleet.must_rejoin``, also where it raises, if the engines must join a new channel: one
    was restarted since the last push, or one was quarantined or has come back.

    Args:
        fleet: the engines.
        quarantines: go on without an engine that no push can bring back.

    Raises:
        FleetError: an engine could not be paused or flushed, or must be restarted first.
    """
    for engine in fleet.engines:
        engine.paused_by_push = False
        if engine.bytes is Bytes.COMMITTED:
            engine.bytes = Bytes.UNCHANGED
    restarted = readmit(fleet)
    fleet.must_rejoin |= bool(restarted)

    async def quiet(engine: EngineControl) -> None:
        try:
            await quiet_once(engine)
        except EngineTimeout:
            raise
        except EngineLost:
            if not quarantines:
                raise
            # One connection that was lost is no dead engine.
            await engine.line.until_idle("pause")
            await quiet_once(engine)

    async def quiet_once(engine: EngineControl) -> None:
        was_stuck = engine.is_stuck
        if was_stuck:
            await engine.require_restarted()
        paused, label = await engine.look()
        engine.paused_by_push |= not paused
        if was_stuck or label not in engine.expected_labels:
            fleet.must_rejoin = True
            engine.forget(paused=paused)
            restarted.append(engine.index)
        try:
            await engine.replies.require_room("pause")
        except EngineNeedsRestart:
            if quarantines and not paused:  # it must not go on with the old weights
                await engine.pause_unheard()
            raise
        await engine.pause()
        await engine.flush()

    try:
        fleet.each(quiet)
    except FleetError as error:
        if not quarantines or not all(map(is_beyond_a_push, error.failures)):
            raise
        set_aside(fleet, error.failures)
        fleet.must_rejoin = True
    if restarted:
        logger.warning(
            "engines %s report a weight version that this trainer did not publish, or come back "
            "from quarantine: they were restarted, or another trainer writes to them. They get a "
            "new channel",
            sorted(set(restarted)),
        )
    for engine in fleet.active:
        if engine.index in restarted:
            assert engine.label is not None
            engine.expected_labels = frozenset({engine.label})


def restore(fleet: Fleet) -> None:
    """Resume what this push paused, never an engine whose bytes an earlier push left dirty.

    For a push that wrote nothing and will not. A failed resume is repeated once, as in `resume`.

    Raises:
        FleetError: an engine did not resume.
    """

    async def run_again(engine: EngineControl) -> None:
        if engine.paused_by_push and engine.bytes is Bytes.UNCHANGED and await engine.is_paused():
            await _resume(engine)

    fleet.each(run_again)


def publish(fleet: Fleet, version: str, report: PushReport) -> None:
    """Publish the version on every engine and read it back; once more where that failed.

    Raises:
        FleetError: an engine does not show the version, or runs. Its error names every engine of
            this rank that does show it. All are paused, as far as they answer.
    """
    for engine in fleet.active:  # an engine whose answer is lost may show it all the same
        engine.expected_labels |= {version}

    async def publish_one(engine: EngineControl) -> None:
        try:
            await _publish_and_read_back(engine, version)
        except EngineError as error:
            logger.warning("publishing version %s failed, trying once more: %s", version, error)
            report.retries += 1
            await _publish_and_read_back(engine, version)

    try:
        fleet.each(publish_one)
    except FleetError as error:
        shown = [engine.index for engine in fleet.active if engine.label == version]
        ahead = f"engines that show version {version} already: {shown or 'none'}"
        failures = [EngineMismatch(f.engine, "publish", f"{f}; {ahead}") for f in error.failures]
        raise FleetError([*failures, *_pause_again(fleet)]) from error
    for engine in fleet.active:
        engine.expected_labels = frozenset({version})


async def _publish_and_read_back(engine: EngineControl, version: str) -> None:
    await engine.publish(version)
    paused, found = await engine.look()
    if not paused:  # it was restarted since it was verified, and holds other weights
        raise engine.found_running("read-back")
    if found != version:
        raise EngineMismatch(
            engine.index, "read-back", f"expected weight version {version}, found {found}"
        )


def resume(fleet: Fleet, report: PushReport) -> Code:
    """Resume every engine; where one does not, `pause_again` pauses those again that did.

    Each is read back, since one that stays paused would serve nobody. A failed resume is repeated
    once, after the state was read: a second effective resume is not harmless on every engine.

    Returns:
        Whether engines are quarantined.

    Raises:
        FleetError: an engine did not resume.
    """

    async def resume_one(engine: EngineControl) -> None:
        await _resume(engine, report)

    fleet.each(resume_one)
    return Code.OK if fleet.active == fleet.engines else Code.DEGRADED


async def _resume(engine: EngineControl, report: PushReport | None = None) -> None:
    """Resume one engine; once more, and counted in the report, where it says that it is paused."""
    try:
        await _resume_and_read_back(engine)
    except EngineError as error:
        if not await engine.is_paused():
            return
        logger.warning("resuming failed and the engine is paused, once more: %s", error)
        if report is not None:
            report.retries += 1
        await _resume_and_read_back(engine)


async def _resume_and_read_back(engine: EngineControl) -> None:
    await engine.resume()
    if await engine.is_paused():  # it said yes, and nobody would be served
        raise EngineMismatch(
            engine.index, "resume", "expected it to run after it answered 200, found it paused"
        )


def pause_again(fleet: Fleet) -> None:
    """Pause every engine.

    Raises:
        FleetError: one does not answer.
    """
    fleet.each(EngineControl.pause)


def _pause_again(fleet: Fleet) -> list[EngineError]:
    try:
        pause_again(fleet)
    except FleetError as error:
        return list(error.failures)
    return []
