"""All engines at once: every outcome is collected, and a coupled failure bounds the wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
from fake_vllm import FakeEngine, FakeTransport, Strike
from httpx_wire import HttpxWire

from resync import Bytes, EngineControl, EngineRejected, EngineTimeout, Fleet, FleetError
from resync.engine_control import Session
from resync.timeouts import PushTimeouts

SETTLE_S = 0.1
TIMEOUTS = PushTimeouts(init_s=5, request_s=5, settle_s=SETTLE_S)


@pytest.fixture
def wire() -> FakeTransport:
    """Three engines, each paused in an open session."""
    return FakeTransport(
        [FakeEngine(index, paused=True, active=True, joined=True) for index in range(3)]
    )


@pytest.fixture
def fleet(wire: FakeTransport) -> Iterator[Fleet]:
    """The fleet of all."""
    fleet = Fleet(dict(enumerate(wire.urls)), TIMEOUTS, wire=HttpxWire(wire))
    yield fleet
    fleet.close()


def reject(number: int) -> EngineRejected:
    """An engine's refusal."""
    return EngineRejected(number, "act", 500, "no")


def test_every_outcome(fleet: Fleet) -> None:
    """One failure does not keep the others from being asked, and each is named in order."""
    asked: list[int] = []

    async def act(engine: EngineControl) -> None:
        asked.append(engine.index)
        await asyncio.sleep(0)
        if engine.index != 1:
            raise reject(engine.index)

    with pytest.raises(FleetError) as failed:
        fleet.each(act)
    assert sorted(asked) == [0, 1, 2]
    assert [failure.engine for failure in failed.value.failures] == [0, 2]
    assert str(failed.value) == (
        "engine 0: act: expected HTTP 200, found 500: no; "
        "engine 2: act: expected HTTP 200, found 500: no"
    )


def test_chosen_engines(wire: FakeTransport, fleet: Fleet) -> None:
    """Only the engines that are given are asked."""
    fleet.each(EngineControl.pause, engines=fleet.engines[1:2])
    assert [request.engine for request in wire.log] == [1]


def test_not_an_engine_error(fleet: Fleet) -> None:
    """A failure that is no engine's is raised as it is, after all have ended."""
    ended: list[int] = []

    async def act(engine: EngineControl) -> None:
        if engine.index == 1:
            raise KeyError("ours")
        await asyncio.sleep(0.01)
        ended.append(engine.index)

    with pytest.raises(KeyError, match="ours"):
        fleet.each(act)
    assert sorted(ended) == [0, 2]


def test_coupled(wire: FakeTransport, fleet: Fleet) -> None:
    """Engines that wait for each other are given up ``settle_s`` after the first failure."""
    wire.strikes += [
        Strike(action="update", kind="reject", engine=1),
        Strike(action="update", kind="hang", engine=0),
    ]

    async def update(engine: EngineControl) -> None:
        await engine.update({"names": ["q"], "content": "target 1"})

    begun_s = time.monotonic()
    with pytest.raises(FleetError) as failed:
        fleet.each(update, coupled=True)
    assert time.monotonic() - begun_s < 2
    assert [type(failure) for failure in failed.value.failures] == [EngineTimeout, EngineRejected]
    assert str(failed.value.failures[0]) == (
        "engine 0: fan-out: another engine failed, and expected an answer within 0.1 s of that, "
        "found none"
    )
    known = [(engine.session, engine.bytes) for engine in fleet.engines]
    assert known == [
        (Session.UPDATE_FAILED, Bytes.DIRTY),
        (Session.UPDATE_FAILED, Bytes.DIRTY),
        (Session.UNKNOWN, Bytes.DIRTY),
    ]


def test_coupled_wait_is_one_wait(fleet: Fleet) -> None:
    """Engines that end one by one after the first failure do not extend the wait for the last."""
    delays_s = [0.0, 0.75 * SETTLE_S, 5.0]

    async def act(engine: EngineControl) -> None:
        await asyncio.sleep(delays_s[engine.index])
        raise reject(engine.index)

    times_s: list[float] = []

    async def timed(engine: EngineControl) -> None:
        times_s.append(asyncio.get_running_loop().time())
        try:
            await act(engine)
        finally:
            times_s.append(asyncio.get_running_loop().time())

    with pytest.raises(FleetError) as failed:
        fleet.each(timed, coupled=True)
    assert [type(failure) for failure in failed.value.failures] == [
        EngineRejected,
        EngineRejected,
        EngineTimeout,
    ]
    assert SETTLE_S <= times_s[-1] - times_s[0] < 1.7 * SETTLE_S


def test_uncoupled_waits_for_all(fleet: Fleet) -> None:
    """Engines that do not wait for each other each have their own time."""
    ended: list[int] = []

    async def act(engine: EngineControl) -> None:
        if engine.index == 0:
            raise reject(0)
        await asyncio.sleep(1.5 * SETTLE_S)
        ended.append(engine.index)

    with pytest.raises(FleetError):
        fleet.each(act)
    assert sorted(ended) == [1, 2]


def test_any_thread_may_call(wire: FakeTransport, fleet: Fleet) -> None:
    """A side thread's request runs beside the main thread's."""
    with ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(fleet.each, EngineControl.flush) for _ in range(2)]
        for future in futures:
            future.result()
    assert len(wire.log) == 6


def test_close(wire: FakeTransport) -> None:
    """Closing ends the thread, sends nothing, and may be repeated."""
    fleet = Fleet(dict(enumerate(wire.urls)), TIMEOUTS, wire=HttpxWire(wire))
    fleet.close()
    fleet.close()
    assert wire.log == []
    assert "resync-control" not in [thread.name for thread in threading.enumerate()]


def test_close_frees_a_waiting_thread(wire: FakeTransport) -> None:
    """A request under way is given up, so that the thread that waits for it can end."""
    wire.strikes.append(Strike(action="update", kind="hang"))
    heard = threading.Event()
    fleet = Fleet(
        dict(enumerate(wire.urls)),
        TIMEOUTS,
        wire=HttpxWire(wire),
        observe=lambda step, /, **details: heard.set(),
    )

    async def update(engine: EngineControl) -> None:
        await engine.update({"names": ["q"], "content": "target 1"})

    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(fleet.each, update)
        assert heard.wait(5)
        fleet.close()
        with pytest.raises(CancelledError):
            future.result(5)
