"""Engines of several workers: replies carry no call id, so a failed request shifts later ones.

Each table is one story. ``w0``, ``w1`` are the workers; a reply that nobody read is answered to
the next request instead.

Source: vLLM 0.32, ``v1/executor/multiproc_executor.py`` (``collective_rpc``).
"""

from __future__ import annotations

from conformance.engine.contract import (
    ALREADY_ACTIVE,
    FINISH,
    FINISH_REFUSED,
    NO_MATCHING_START,
    START,
    START_REFUSED,
    EngineMaker,
    Step,
    converse,
    expect,
    said,
    stuck,
    update,
)
from conformance.engine.rules import Need, proves

EXECUTOR = "vllm/v1/executor/multiproc_executor.py"
FAILED = "Worker failed with error '"
PROBE = {"method": "get_supported_tasks"}


@proves(
    "facts 8.2 vector 8",
    "facts 1.3 table A",
    "vllm/v1/executor/multiproc_executor.py:433",
    needs=[Need.TP2],
)
async def last_worker_fails(make: EngineMaker) -> None:
    """Only w1 refuses: start is refused by w0 but opens w1, and finish closes both."""
    async with make(workers=2) as engine:
        await engine.init()
        fails = update(engine, on=[True, False], status=500, says=FAILED)
        await converse(engine, [START, fails, START_REFUSED, FINISH])
        # w1's successful start was never read, so its answers lag by one from here on.
        late = Step("POST /pause", 500, ALREADY_ACTIVE)
        await converse(engine, [START, START_REFUSED, FINISH, late])


@proves(
    "facts 8.2 vector 8",
    "facts 1.3 table B",
    "vllm/v1/executor/multiproc_executor.py:433",
    needs=[Need.TP2],
)
async def first_worker_fails(make: EngineMaker) -> None:
    """Only w0 refuses: w1's refused start is called 200; the next request gets its error."""
    async with make(workers=2) as engine:
        await engine.init()
        fails = update(engine, on=[False, True], status=500, says=FAILED)
        works_late = update(engine, status=500, says=ALREADY_ACTIVE)
        await converse(engine, [START, fails, START, works_late, FINISH])


@proves(
    "facts 8.2 vector 8",
    "facts 1.3 table C",
    "vllm/v1/executor/multiproc_executor.py:433",
    needs=[Need.TP2],
)
async def both_workers_fail(make: EngineMaker) -> None:
    """Both refuse: start opens both and is answered with the old error; the rest says 200."""
    async with make(workers=2) as engine:
        await engine.init()
        await converse(engine, [START])
        info = {"update_info": [engine.refused_update] * 2}
        answer = await engine.client.post("/update_weights", json=info)
        expect(answer, 500, FAILED, told="the refused update")
        stale = Step("POST /start_weight_update", 500, said(answer))
        works = update(engine, status=200, says="Weights updated")
        await converse(engine, [stale, works, FINISH])


@proves(
    "facts 1.3 table D", "vllm/v1/executor/multiproc_executor.py:433", needs=[Need.TP2, Need.FAILS]
)
async def shifted_finish_publishes(make: EngineMaker) -> None:
    """With one reply unread, a finish that w1 fails is answered 200 and sets the version."""
    async with make(workers=2, failing={"finish_weight_update": 1}) as engine:
        await converse(
            engine,
            [
                START,
                Step("POST /start_weight_update", 500, FAILED),  # leaves w1's refusal unread
                Step("POST /pause", 500, FAILED),  # reads it, and leaves its own reply
                Step("POST /finish_weight_update", 200, body={"weight_version": "7"}),
                Step("GET /weight_info", 200, '"7"'),
                Step("POST /resume", 200),
                Step("POST /start_weight_update", 500, "injected"),  # the failed finish
            ],
        )


@proves("facts 1.3 table E", "vllm/v1/executor/multiproc_executor.py:433", needs=[Need.TP2])
async def failing_probe_poisons_the_next(make: EngineMaker) -> None:
    """Finish as a probe for a stale session: the next request is answered with its error."""
    async with make(workers=2) as engine:
        await converse(engine, [FINISH_REFUSED])
        expect(await engine.init(), 500, FINISH_REFUSED.says, told="init, which worked")
        await converse(engine, [START, FINISH])


@proves("facts 1.3 table F", "vllm/v1/executor/multiproc_executor.py:433", needs=[Need.TP2])
async def start_retried_after_a_lost_reply(make: EngineMaker) -> None:
    """A start that is sent twice: the update after it works and is answered with R."""
    async with make(workers=2) as engine:
        await engine.init()
        works_late = update(engine, status=500, says=ALREADY_ACTIVE)
        await converse(engine, [START, START_REFUSED, works_late, FINISH])


@proves("facts 1.3 table G", "vllm/v1/executor/multiproc_executor.py:433", needs=[Need.TP4])
async def middle_worker_fails(make: EngineMaker) -> None:
    """Of four workers, w1 refuses: w2 and w3 lag by one, w0 and w1 do not."""
    async with make(workers=4) as engine:
        await engine.init()
        fails = update(engine, on=[True, False, True, True], status=500, says=FAILED)
        await converse(engine, [START, fails])
        answer = await engine.client.post("/collective_rpc", json=PROBE)
        expect(answer, 200, told="POST /collective_rpc get_supported_tasks")
        found = answer.json()["results"]
        assert found[0] == found[1] is not None, f"expected w0 and w1 in step, found {found}"
        assert found[2:] == [None, None], f"expected w2 and w3 one reply behind, found {found}"


@proves("facts 1.3", "vllm/v1/executor/multiproc_executor.py:433", needs=[Need.TP2])
async def probe_counts_the_backlog(make: EngineMaker) -> None:
    """A probe that cannot fail finds each rank's backlog, and shrinks none."""
    async with make(workers=2) as engine:
        for backlog in range(4):
            probe = await engine.client.post("/collective_rpc", json=PROBE)
            tasks = probe.json()["results"][0]
            seen = [probe.json()["results"][1]]
            for _ in range(backlog):
                idle = await engine.client.post("/collective_rpc", json={"method": "check_health"})
                seen.append(idle.json()["results"][1])
            wanted = [None] * backlog + [tasks]
            assert seen == wanted, f"backlog {backlog}: expected {wanted}, found {seen}"
            # One more failed request, then read w1's refusal with requests that change nothing.
            await converse(engine, [Step("POST /finish_weight_update", 500, FAILED)])
            for _ in range(backlog):
                await engine.client.post("/collective_rpc", json={"method": "check_health"})
            failed = await engine.client.post("/collective_rpc", json={"method": "check_health"})
            expect(failed, 500, FINISH_REFUSED.says, told="the no-op that reads w1's refusal")


@proves("facts 1.3", "vllm/v1/executor/multiproc_executor.py:433")
async def one_worker_never_shifts(make: EngineMaker) -> None:
    """An engine of one worker answers each request with its own reply, however many failed."""
    async with make() as engine:
        await converse(engine, [FINISH_REFUSED, START, START_REFUSED, FINISH, FINISH_REFUSED])


@proves("facts 1.3 table H", f"{EXECUTOR}:436", needs=[Need.TP2, Need.HANGS])
async def a_timed_out_call_shifts_from_there(make: EngineMaker) -> None:
    """``/collective_rpc`` with a time-out: the call runs on, and rank 0 lags as well."""
    for rank, behind in ((0, [True, True]), (1, [False, True])):
        async with make(workers=2, hanging={"check_health": rank}) as engine:
            late = {"method": "check_health", "timeout": 0.01}
            says = "RPC call to check_health timed out."
            await converse(engine, [Step("POST /collective_rpc", 500, says, late)])
            await engine.release()
            answer = await engine.client.post("/collective_rpc", json=PROBE)
            expect(answer, 200, told="POST /collective_rpc get_supported_tasks")
            found = [result is None for result in answer.json()["results"]]
            assert found == behind, f"w{rank} timed out: expected {behind} behind, found {found}"


@proves("facts 1.3", "vllm/v1/engine/core.py:914", needs=[Need.TP2])
async def a_pause_that_fails_has_paused(make: EngineMaker) -> None:
    """Pause sets the state first: one that is answered with a stale error has paused as well."""
    async with make(workers=2) as engine:
        late = Step("POST /pause", 500, NO_MATCHING_START)
        await converse(engine, [FINISH_REFUSED, late, Step("GET /is_paused", says="true")])


@proves("facts 1.3", f"{EXECUTOR}:433", needs=[Need.TP2, Need.EXACT])
async def checksums_shift_too(make: EngineMaker) -> None:
    """Behind a backlog a rank's digests are those of an earlier question, or none at all."""
    async with make(workers=2) as engine:
        no_op = Step("POST /collective_rpc", 500, FAILED, {"method": "check_health"})
        await converse(engine, [FINISH_REFUSED, no_op])
        none = "'NoneType' object has no attribute 'keys'"
        await converse(engine, [Step("POST /weight_checker", 500, none, {"action": "checksum"})])


@proves("facts 1.3", f"{EXECUTOR}:433", needs=[Need.TP2])
async def checksums_take_a_shifted_probe(make: EngineMaker) -> None:
    """A rank's answer to a probe can be read as its digests: it came as a list, and says so."""
    async with make(workers=2) as engine:
        no_op = Step("POST /collective_rpc", 500, FAILED, {"method": "check_health"})
        probe = Step("POST /collective_rpc", 200, body=PROBE)
        no_keys = "'list' object has no attribute 'keys'"
        checker = Step("POST /weight_checker", 500, no_keys, {"action": "checksum"})
        await converse(engine, [FINISH_REFUSED, no_op, probe, checker])


@proves("facts 1.3", f"{EXECUTOR}:433", needs=[Need.TP2, Need.FAILS])
async def no_ops_uncover_a_failed_finish(make: EngineMaker) -> None:
    """Behind a backlog of b, the b-th no-op after a finish tells what the finish really did."""
    async with make(workers=2, failing={"finish_weight_update": 1}) as engine:
        no_op = {"method": "check_health"}
        await converse(
            engine,
            [
                START,
                START_REFUSED,  # b = 1: w1's refusal is unread
                Step("POST /collective_rpc", 500, ALREADY_ACTIVE, no_op),
                FINISH,  # w1 fails it, and is read as the no-op before
                Step("POST /collective_rpc", 500, FAILED, no_op),
                Step("POST /collective_rpc", 200, body=no_op),
            ],
        )


@proves("facts 1.3", f"{EXECUTOR}:433", needs=[Need.TP2, Need.HANGS])
async def a_fast_failure_hides_a_stuck_worker(make: EngineMaker) -> None:
    """If w0 refuses while w1 hangs, that request says 500 at once, and the next hangs."""
    async with make(workers=2, hanging={"update_weights": 1}) as engine:
        await engine.init()
        fails = update(engine, on=[False, True], status=500, says=FAILED)
        await converse(engine, [START, fails])
        async with stuck(engine, Step("POST /start_weight_update", 200)):
            await converse(engine, [Step("GET /version")])


CHECKS = (
    last_worker_fails,
    first_worker_fails,
    both_workers_fail,
    shifted_finish_publishes,
    failing_probe_poisons_the_next,
    start_retried_after_a_lost_reply,
    middle_worker_fails,
    probe_counts_the_backlog,
    one_worker_never_shifts,
    a_timed_out_call_shifts_from_there,
    a_pause_that_fails_has_paused,
    checksums_shift_too,
    checksums_take_a_shifted_probe,
    no_ops_uncover_a_failed_finish,
    a_fast_failure_hides_a_stuck_worker,
)
