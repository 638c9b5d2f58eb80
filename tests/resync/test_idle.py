"""After a request that was not answered: wait until the engine is idle, or declare it stuck."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

import pytest
from fake_vllm import FakeEngine, FakeTransport, Strike
from httpx_wire import HttpxWire
from push_world import QUICK, MakeWorld

from resync import (
    Bytes,
    EngineControl,
    EngineLost,
    EngineStuck,
    EngineTimeout,
    PushFailed,
    PushTimeouts,
)
from resync.idle import in_flight, wait_until_idle

GAUGE = "vllm:rl_weight_update_operations_in_flight"
LIMITS = PushTimeouts(init_s=0.2, request_s=0.1, settle_s=0.05)
BUSY_FOR_EVER = [1] * 1000
STUCK = (
    "start got no answer within 0.1 s, and the engine did not come to rest in the 0.2 s after it. "
    "It is stuck and is asked nothing any more. Restart it"
)

# fmt: off
EXPOSITIONS = [
    # metrics                                                                    in flight
    ("",                                                                         None),
    (f"# TYPE {GAUGE} gauge\n",                                                  None),
    (f'{GAUGE}{{operation="start"}} 0.0\n',                                      0.0),
    (f'{GAUGE}{{operation="start"}} 0.0\n{GAUGE}{{operation="update"}} 2.0\n',   2.0),
    (f"{GAUGE} 1\n",                                                             1.0),
    (f"{GAUGE}_created 1.7e9\nvllm:num_requests_running 5.0\n",                  None),
]
# fmt: on


@pytest.mark.parametrize(("metrics", "value"), EXPOSITIONS)
def test_in_flight(metrics: str, value: float | None) -> None:
    """The gauge is the sum over the operations, and nothing else that looks like it."""
    assert in_flight(metrics) == value


# fmt: off
WAITS: list[tuple[list[float | None], str]] = [
    # what the gauge shows      what is asked
    ([None, None],              "gauge trip gauge"),
    ([0, 0],                    "gauge trip gauge"),
    ([1, 1, 0, 0],              "gauge gauge gauge trip gauge"),
    ([0, 1, 0, 0],              "gauge trip gauge gauge trip gauge"),  # one began meanwhile
]
# fmt: on


@pytest.mark.parametrize(("shown", "asked"), WAITS)
def test_wait_until_idle(shown: list[float | None], asked: str) -> None:
    """Nothing in flight, a round trip through the core, and still nothing in flight."""
    values, calls = iter(shown), []

    async def gauge() -> float | None:
        calls.append("gauge")
        return next(values)

    async def trip() -> None:
        calls.append("trip")

    asyncio.run(wait_until_idle(gauge, trip, limit_s=5))
    assert calls == asked.split()
    assert next(values, "no more") == "no more"


def test_busy_for_ever() -> None:
    """A gauge that never falls ends the wait at its limit."""

    async def gauge() -> float:
        return 1

    async def trip() -> None:
        raise AssertionError("asked something of a busy core")

    with pytest.raises(TimeoutError):
        asyncio.run(wait_until_idle(gauge, trip, limit_s=0.05))


def play(
    engine: FakeEngine, strikes: list[Strike], story: Callable[[EngineControl], Awaitable[None]]
) -> list[str]:
    """Tell a story with one engine that has had an operation; return what it was asked."""
    engine.operations.add("init")
    wire = FakeTransport([engine], strikes)

    async def run() -> None:
        async with HttpxWire(wire) as httpx_wire, asyncio.timeout(10):
            await story(
                EngineControl(index=0, url="http://engine-0", wire=httpx_wire, timeouts=LIMITS)
            )

    asyncio.run(run())
    return wire.actions()


def test_nothing_is_sent_before_it_is_idle() -> None:
    """After a time-out only the gauge is read, past the core, until the operation has ended."""

    async def story(engine: EngineControl) -> None:
        with pytest.raises(EngineTimeout):
            await engine.start()
        await asyncio.gather(engine.pause(), engine.version())
        await engine.is_paused()

    fake = FakeEngine(0, in_flight=[1, 1, 0, 0])
    asked = play(fake, [Strike(action="start", kind="hang")], story)
    waits = ["metrics", "metrics", "metrics", "version", "metrics"]
    assert asked[:6] == ["start", *waits]
    assert sorted(asked[6:8]) == ["pause", "version"]
    assert asked[8:] == ["is_paused"]


@pytest.mark.parametrize("kind", ["hang", "reply_lost", "request_lost"])
def test_whatever_ended_it(kind: str) -> None:
    """A lost connection leaves it as open as a time-out whether the engine is at it."""

    async def story(engine: EngineControl) -> None:
        with pytest.raises(EngineLost):
            await engine.pause()
        assert await engine.is_paused() is (kind == "reply_lost")

    asked = play(FakeEngine(0), [Strike(action="pause", kind=kind)], story)
    assert asked == ["pause", "metrics", "version", "metrics", "is_paused"]


def test_a_request_that_is_given_up() -> None:
    """So does a request that the fan-out gave up."""

    async def story(engine: EngineControl) -> None:
        task = asyncio.ensure_future(engine.init({}))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        await engine.version()

    asked = play(FakeEngine(0), [Strike(action="init", kind="hang")], story)
    assert asked == ["init", "metrics", "version", "metrics", "version"]


# fmt: off
NEVER_IDLE = [
    # the gauge            the round trip   asked after the start
    (BUSY_FOR_EVER,        "",              {"metrics"}),
    ([],                   "hang",          {"metrics", "version"}),
]
# fmt: on


@pytest.mark.parametrize(("shown", "trip", "asked"), NEVER_IDLE)
def test_stuck_after_the_third_time_out(shown: list[int], trip: str, asked: set[str]) -> None:
    """An engine that does not come to rest in two more time-outs is stuck: nothing is sent to it
    again, until its metrics show that it is another process."""
    fake = FakeEngine(0, in_flight=list(shown))

    async def story(engine: EngineControl) -> None:
        with pytest.raises(EngineTimeout):
            await engine.start()
        for action, call in (("pause", engine.pause), ("finish", engine.finish)):
            with pytest.raises(EngineStuck) as stuck:
                await call()
            assert str(stuck.value) == f"engine 0: {action}: {STUCK}"
        assert engine.report().bytes is Bytes.STUCK
        with pytest.raises(EngineStuck):
            await engine.require_restarted()
        fake.restart()
        await engine.require_restarted()
        assert engine.report().bytes is Bytes.UNCHANGED
        await engine.pause()

    strikes = [Strike(action="start", kind="hang")]
    strikes += [Strike(action="version", kind=trip, always=True)] if trip else []
    all_asked = play(fake, strikes, story)
    assert (all_asked[0], all_asked[-1]) == ("start", "pause")
    assert set(all_asked[1:-1]) == asked
    assert all_asked[-4:-1].count("version") <= 1


def test_dead_while_waiting() -> None:
    """An engine that has died is lost, not stuck, and is asked again."""

    async def story(engine: EngineControl) -> None:
        with pytest.raises(EngineTimeout):
            await engine.start()
        with pytest.raises(EngineLost):
            await engine.pause()
        assert not engine.is_stuck
        await engine.pause()

    strikes = [Strike(action="start", kind="hang"), Strike(action="metrics", kind="request_lost")]
    asked = play(FakeEngine(0), strikes, story)
    assert asked == ["start", "metrics", "metrics", "version", "metrics", "pause"]


# ---- whole pushes ----


@pytest.mark.parametrize("transport", ["ipc", "nccl"])
@pytest.mark.parametrize("action", ["start", "update", "finish"])
def test_stuck_engine(make_world: MakeWorld, action: str, transport: str) -> None:
    """A push raises on every rank, naming the stuck engine; the next one asks it nothing; once it
    was restarted it joins a new channel and gets the whole model."""
    world = make_world(
        engines=2,
        transport=transport,
        timeouts=dataclasses.replace(QUICK, init_s=0.2, request_s=0.2),
    ).connected()
    world.pushed()
    world.fakes[1].in_flight += BUSY_FOR_EVER
    world.wire.strikes.append(Strike(action=action, kind="hang", engine=1))
    errors = world.push()
    for error in errors:
        assert isinstance(error, PushFailed)
        assert "engine 1: pause: " in str(error)
        assert "Restart it" in str(error)
    assert (world.labels, world.paused) == (["1", "1"], [True, True])
    others = Bytes.UNCHANGED if action == "start" else Bytes.DIRTY
    assert [e.bytes for e in errors[0].report.engines] == [others, Bytes.STUCK]
    world.wire.log.clear()
    assert all(isinstance(error, PushFailed) for error in world.push())
    assert world.wire.actions(1) == ["metrics"]
    world.fakes[1].restart()
    report = world.pushed()[0]
    assert [e.bytes for e in report.engines] == [Bytes.COMMITTED] * 2
    assert (world.labels, world.weights) == (["2", "2"], ["target 4"] * 2)


def test_late_resume(make_world: MakeWorld) -> None:
    """A resume that took effect late is found to have, and is not repeated."""
    world = make_world().connected()
    world.wire.strikes.append(Strike(action="resume", kind="reply_lost"))
    report = world.pushed()[0]
    assert report.retries == 0
    tail = ["resume", "metrics", "version", "metrics", "is_paused"]
    assert world.wire.actions()[-5:] == tail


def test_restarted_between_pause_and_start(make_world: MakeWorld) -> None:
    """An engine that came back running is noticed before the start that would be fatal."""
    world = make_world().connected()
    world.pushed()
    visits = world.wire.actions().count("is_paused")
    assert visits > 0
    world.wire.strikes.append(Strike(action="is_paused", kind="restart", nth=2))
    report = world.pushed()[0]
    assert [cause.message for cause in report.attempts[0].causes] == [
        "engine 0: start: expected generation to be paused, found it running: the engine was "
        "restarted or somebody resumed it during the push"
    ]
    assert (world.labels, world.weights) == (["2"], ["target 2"])


def test_init_that_is_late(make_world: MakeWorld) -> None:
    """The second channel is not begun before the engine has come to rest after the first, which
    may take longer than a channel may."""
    timeouts = dataclasses.replace(QUICK, init_s=1)
    looks_of_more_than_a_channel = 15  # a tenth of a second apart, but for the first
    world = make_world(timeouts=timeouts)
    world.fakes[0].in_flight += [1] * looks_of_more_than_a_channel
    world.wire.strikes.append(Strike(action="init", kind="reply_lost"))
    assert world.connect() == [2, 2]
    waits = [*["metrics"] * (looks_of_more_than_a_channel + 1), "version", "metrics"]
    assert world.wire.actions()[3:] == ["init", *waits, "init"]
    assert world.steps_heard == ["look", "connect", "come_to_rest", "connect"]
    world.pushed()
