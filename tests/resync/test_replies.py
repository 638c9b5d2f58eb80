"""Several workers: whose failure it is, when an operation is done, and how far behind they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from several_workers import UPDATE, Several, failing, several_workers

from resync import EngineControl, EngineMismatch, EngineNeedsRestart, EngineRejected, PushTimeouts
from resync.engine_control import Session
from resync.replies import MAX_BACKLOG, RING_SLOTS

RPC = "/collective_rpc"
PROFILES = ("vllm-0.32", "vllm-next")


def run(story: Callable[[], Awaitable[None]]) -> None:
    """Play one story, within a limit."""

    async def limited() -> None:
        async with asyncio.timeout(30):
            await story()

    asyncio.run(limited())


async def shifted(engine: Several, times: int = 1) -> None:
    """Leave replies unread, as ``times`` failed requests of somebody else's do.

    Each leaves one more on a worker than on the one below it. No failure is among them.
    """
    for _ in range(times):
        assert await engine.post("/finish_weight_update", {}) == 500
        for _ in range(RING_SLOTS + len(engine.open)):
            await engine.post(RPC, {"method": "check_health"})


async def refused(awaitable: Awaitable[Any]) -> str:
    """Return what a request is refused with."""
    with pytest.raises(EngineRejected) as error:
        await awaitable
    return error.value.text


# ---- one worker, and several that are not behind ----


def test_one_worker_costs_nothing() -> None:
    """At one worker each operation is one request, and the probe too, after failures as well."""

    async def story() -> None:
        async with several_workers(1, failing("worker.receive")) as engine:
            control = engine.control
            await control.start()
            await refused(control.update(UPDATE))
            await control.close_session(has_draft=False)
            await control.probe()
            start, finish = "/start_weight_update", "/finish_weight_update"
            assert engine.asked == [start, "/update_weights", start, finish, RPC]

    run(story)


def test_several_in_step_cost_nothing_more() -> None:
    """Once several workers are known to be in step, each operation is one request."""

    async def story() -> None:
        async with several_workers(2) as engine:
            control = engine.control
            await control.replies.require_room("connect")
            assert engine.asked == [RPC] * (RING_SLOTS + 1)
            engine.asked.clear()
            await control.replies.require_room("start")
            await control.start()
            await control.update(UPDATE)
            await control.finish()
            await control.probe()
            assert len(engine.asked) == 4

    run(story)


# ---- finding the backlog ----


@pytest.mark.parametrize("times", range(5))
def test_backlog_is_found(times: int) -> None:
    """A probe that cannot fail finds how far each worker is behind, and leaves it as it is."""

    async def story() -> None:
        async with several_workers(2) as engine:
            await shifted(engine, times)
            await engine.control.replies.require_room("connect")
            assert engine.control.replies.backlog == await engine.backlog() == (0, times)

    run(story)


def test_backlog_is_found_behind_unread_failures() -> None:
    """Failures that somebody else left unread are read first, and are nobody's of this push."""

    async def story() -> None:
        async with several_workers(3) as engine:
            await engine.post("/finish_weight_update", {})  # fails on all three, one is read
            await engine.control.start()
            assert engine.open == [True] * 3
            assert engine.control.replies.backlog == await engine.backlog() == (0, 1, 2)

    run(story)


# ---- whose failure it is ----

# fmt: off
TABLES = [
    # workers that fail the update  backlog after it   refused  open after it
    ((1,),                          (0, 0),            1,       [True, False]),   # A
    ((0,),                          (0, 1),            1,       [False, True]),   # B
    ((0, 1),                        (0, 1),            2,       [False, False]),  # C
    ((1,),                          (0, 0, 1, 1),      1,       [True, False, True, True]),  # G
    ((0, 1, 2, 3),                  (0, 1, 2, 3),      4,       [False] * 4),
    ((0, 3),                        (0, 1, 1, 1),      2,       [False, True, True, False]),
]
# fmt: on


@pytest.mark.parametrize("behind", [0, 1, 2])
@pytest.mark.parametrize(("workers", "backlog", "refused_by", "open_"), TABLES)
def test_failed_update(
    workers: tuple[int, ...],
    backlog: tuple[int, ...],
    refused_by: int,
    open_: list[bool],
    behind: int,
) -> None:
    """An update that some workers failed is refused, however far behind they are, with the text of
    one that did; everything has ended then and every failure has been read."""

    async def story() -> None:
        faults = failing("worker.receive", *workers)
        async with several_workers(len(backlog), faults) as engine:
            await shifted(engine, behind)
            before = await engine.backlog()
            await engine.control.start()
            text = await refused(engine.control.update(UPDATE))
            assert any(f"worker {worker} fails" in text for worker in workers)
            after = await engine.backlog()
            added = tuple(b - a for a, b in zip(before, after, strict=True))
            assert added == backlog
            assert engine.control.replies.backlog == await engine.backlog()
            assert engine.control.replies.num_refused == refused_by
            assert engine.open == open_
            assert engine.control.session is Session.UPDATE_FAILED
            await engine.control.close_session(has_draft=False)
            await pushes(engine)

    run(story)


async def pushes(engine: Several) -> None:
    """Check that a session opens on every worker, ends, and leaves the engine ready."""
    control = engine.control
    assert (engine.open, engine.on_meta) == ([False] * len(engine.open), False)
    await control.start()
    assert engine.open == [True] * len(engine.open)
    await control.update(UPDATE)
    await control.finish()
    await control.probe()
    assert (engine.open, engine.on_meta) == ([False] * len(engine.open), False)
    assert control.replies.backlog == await engine.backlog()


def test_failure_told_late_is_the_operation_s() -> None:
    """With w1 one reply behind, the finish that it fails is answered 200; it is refused all the
    same, and says which request brought it to light."""

    async def story() -> None:
        async with several_workers(2, failing("worker.finish", 1)) as engine:
            await shifted(engine)
            await engine.control.start()
            text = await refused(engine.control.finish())
            assert text.endswith("(told 1 requests late, by a worker)")
            assert engine.control.session is Session.FINISH_FAILED
            assert engine.open == [False, True]
            await engine.control.close_session(has_draft=False)
            await pushes(engine)

    run(story)


def test_operation_is_done_when_every_worker_has_done_it() -> None:
    """With w1 behind, an update is answered while w1 is at it; the operation is not done."""

    async def story() -> None:
        slow = failing("worker.receive", 1)[0] | {"kind": "slow", "options": {"seconds": 0.3}}
        async with several_workers(2, [slow]) as engine:
            await shifted(engine)
            await engine.control.start()
            threads = engine.engine.core.executor.threads
            await engine.control.update(UPDATE)
            assert [thread.busy for thread in threads] == [None, None]

    run(story)


def test_refused_by_the_front_end() -> None:
    """What no worker heard of leaves no reply unread and every session as it was."""

    async def story() -> None:
        async with several_workers(2) as engine:
            await shifted(engine)
            await engine.control.start()
            await refused(engine.control.update(None))
            assert engine.control.replies.num_refused == 0
            assert engine.control.replies.backlog == await engine.backlog() == (0, 1)
            engine.asked.clear()
            await engine.control.close_session(has_draft=False)
            assert await engine.backlog() == (0, 1), "nothing that fails was asked"
            await pushes(engine)

    run(story)


# ---- closing ----


async def fail(control: EngineControl) -> None:
    """Make a session whose start, update or finish fails."""
    try:
        await control.start()
        await control.update(UPDATE)
        await control.finish()
    except EngineRejected:
        return
    raise AssertionError("nothing failed")


# fmt: off
CLOSING = [
    # fault point      of 8, those that fail   replies that closing may leave on the last worker
    ("worker.receive", (3,),                   1),
    ("worker.receive", (0, 1, 2),              3),
    ("worker.receive", (0, 1, 2, 3, 4, 5, 7),  1),
    ("worker.receive", tuple(range(8)),        0),
    ("worker.start",   (3,),                   1),
    ("worker.start",   tuple(range(8)),        0),
    ("worker.finish",  (3,),                   1),
    ("worker.finish",  (0, 1, 2),              3),
]
# fmt: on


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("at", "workers", "most"), CLOSING)
def test_closing_split_sessions(at: str, workers: tuple[int, ...], most: int, profile: str) -> None:
    """Sessions that are open on some workers only are closed on all, and few replies stay unread:
    at eight workers a careless order would use up the ring at once."""

    async def story() -> None:
        async with several_workers(8, failing(at, *workers), profile=profile) as engine:
            control = engine.control
            await fail(control)
            before = max(await engine.backlog())
            await control.close_session(has_draft=False)
            assert max(await engine.backlog()) - before <= most
            await pushes(engine)

    run(story)


# ---- the cap, and others ----


def test_the_cap() -> None:
    """Past the cap the engine is to be restarted; up to it, it is used; a new process is fine."""

    async def story() -> None:
        async with several_workers(2) as engine:
            replies = engine.control.replies
            await shifted(engine, MAX_BACKLOG)
            await replies.require_room("start")
            await engine.control.start()
            await engine.control.finish()
            await shifted(engine)
            replies.forget()
            with pytest.raises(EngineNeedsRestart) as refusal:
                await replies.require_room("start")
            assert str(refusal.value) == (
                "engine 0: start: expected at most 8 unread replies of a worker, found replies 0 "
                "and 9 calls behind on workers 0 to 1: after some more failures a worker would "
                "wait for room for ever. Restart the engine"
            )
            remembered = replies.backlog
        async with several_workers(2) as engine:
            engine.control.replies.backlog = remembered
            await engine.control.replies.require_room("start")
            assert engine.control.replies.backlog == (0, 0)

    run(story)


def test_somebody_else_s_failure() -> None:
    """A failure of somebody else's request during the push is noticed by the probe, which leaves
    the right backlog behind for the resend."""

    async def story() -> None:
        async with several_workers(2) as engine:
            control = engine.control
            await control.start()
            await control.finish()
            await shifted(engine)
            with pytest.raises(EngineMismatch) as mismatch:
                await control.probe()
            assert str(mismatch.value) == (
                "engine 0: probe: expected replies 0 and 0 calls behind on workers 0 to 1, found "
                "0 and 1 calls behind on workers 0 to 1: somebody else's request has failed, and "
                "what the workers said may belong to other calls"
            )
            await pushes(engine)

    run(story)


def test_one_fails_while_another_is_at_it() -> None:
    """After the first failure the others get the settle time; then the failure that is known is
    raised, and the engine must come to rest before it is asked more."""

    async def story() -> None:
        slow = failing("worker.start", 1)[0] | {"kind": "slow", "options": {"seconds": 1.0}}
        faults = [*failing("worker.start", 0), slow | {"fault": 1}]
        limits = PushTimeouts(init_s=5, request_s=5, settle_s=0.1)
        async with several_workers(2, faults, timeouts=limits) as engine:
            text = await refused(engine.control.start())
            assert "worker 0 fails" in text
            assert engine.engine.core.executor.threads[1].busy == "start_weight_update"
            assert engine.control.line.late is not None
            assert engine.control.replies.backlog is None

    run(story)
