"""The session of one worker: what each request does in each state.

Source: vLLM 0.32, ``v1/worker/gpu_worker.py``, ``init_weight_transfer_engine`` and below.
"""

from __future__ import annotations

from conformance.engine.contract import (
    ALREADY_ACTIVE,
    BUSY,
    FINISH,
    FINISH_REFUSED,
    NO_DRAFT,
    NO_MATCHING_START,
    NOT_CONFIGURED,
    NOT_STARTED,
    START,
    START_REFUSED,
    EngineMaker,
    Step,
    converse,
    expect,
    refused,
    update,
)
from conformance.engine.rules import Need, proves

SHUTDOWN = Step("POST /shutdown_weight_transfer_engine", says="Weight transfer shut down")
SHUTDOWN_REFUSED = refused("POST /shutdown_weight_transfer_engine", BUSY)


@proves(
    "facts 8.2 vector 1", "vllm/v1/worker/gpu_worker.py:1566", "vllm/v1/worker/gpu_worker.py:1592"
)
async def idle_takes_only_start(make: EngineMaker) -> None:
    """Without a session, update and finish are refused and change nothing."""
    async with make() as engine:
        await engine.init()
        bare_update = refused(
            "POST /update_weights", NOT_STARTED, {"update_info": engine.empty_update}
        )
        await converse(engine, [bare_update, FINISH_REFUSED, START, FINISH, FINISH_REFUSED])


@proves("facts 8.2 vector 1", "vllm/v1/worker/gpu_worker.py:1534")
async def open_takes_no_second_start(make: EngineMaker) -> None:
    """A second start, of either kind, is refused and leaves the session open."""
    async with make() as engine:
        second_draft = refused("POST /start_draft_weight_update", ALREADY_ACTIVE)
        await converse(engine, [START, START_REFUSED, second_draft, FINISH])


@proves("facts 8.2 vector 7", "vllm/v1/worker/gpu_worker.py:1500")
async def open_keeps_its_channel(make: EngineMaker) -> None:
    """Shutdown is refused while a session is open; init is not, and the session stays open."""
    async with make() as engine:
        await converse(engine, [START, SHUTDOWN_REFUSED])
        expect(await engine.init(), 200, told="init in an open session")
        await converse(engine, [START_REFUSED, FINISH, SHUTDOWN, SHUTDOWN])


@proves("facts 8.2 vector 2", "vllm/v1/worker/gpu_worker.py:1582")
async def failed_update_ends_the_session(make: EngineMaker) -> None:
    """After an update that a worker refused, finish has no match and start opens again."""
    async with make() as engine:
        await engine.init()
        fails = update(engine, on=[False], status=500, says="Worker failed with error '")
        works = update(engine, status=200, says="Weights updated")
        after = refused("POST /update_weights", NOT_STARTED, {"update_info": engine.empty_update})
        await converse(engine, [START, fails, after, FINISH_REFUSED, START, works, FINISH])


@proves("facts 1.2", "vllm/v1/worker/gpu_worker.py:1597", needs=[Need.FAILS])
async def failed_finish_keeps_the_session(make: EngineMaker) -> None:
    """After a finish that raised, the session is open still: finish again works."""
    async with make(failing={"finish_weight_update": 0}) as engine:
        await engine.init()
        fails = Step("POST /finish_weight_update", 500, "Worker failed with error '")
        works = update(engine, status=200, says="Weights updated")
        await converse(engine, [START, fails, START_REFUSED, works, FINISH, FINISH_REFUSED])


@proves("facts 1.2", "vllm/v1/worker/gpu_worker.py:1541", needs=[Need.FAILS])
async def failed_start_opens_nothing(make: EngineMaker) -> None:
    """After a start that raised, finish has no match and start works."""
    async with make(failing={"start_weight_update": 0}) as engine:
        fails = Step("POST /start_weight_update", 500, "Worker failed with error '")
        await converse(engine, [fails, FINISH_REFUSED, START, FINISH])


@proves("facts 8.2 vector 6", "vllm/v1/worker/gpu_worker.py:1151")
async def draft_needs_a_draft_model(make: EngineMaker) -> None:
    """Without a draft model a draft session is refused and nothing is open."""
    async with make() as engine:
        fails = refused("POST /start_draft_weight_update", NO_DRAFT)
        await converse(engine, [fails, FINISH_REFUSED, START, FINISH])


@proves("facts 1.2", "vllm/v1/worker/gpu_worker.py:1477", needs=[Need.UNCONFIGURED])
async def unconfigured_refuses(make: EngineMaker) -> None:
    """Without weight transfer every request but shutdown is refused."""
    async with make(configured=False) as engine:
        await converse(
            engine,
            [
                refused("POST /init_weight_transfer_engine", NOT_CONFIGURED, {"init_info": {}}),
                refused("POST /start_weight_update", NOT_CONFIGURED),
                refused("POST /start_draft_weight_update", NOT_CONFIGURED),
                refused("POST /update_weights", NOT_CONFIGURED, {"update_info": {}}),
                refused("POST /finish_weight_update", NOT_CONFIGURED),
                SHUTDOWN,
            ],
        )


@proves("facts 1.2", "vllm/v1/engine/core.py:2061")
async def pause_and_session_are_apart(make: EngineMaker) -> None:
    """Sessions open and close on running, paused and sleeping engines alike."""
    async with make() as engine:
        for state in ("POST /resume", "POST /pause", "POST /sleep?level=1"):
            await converse(engine, [Step(state), START, START_REFUSED, FINISH, FINISH_REFUSED])


@proves("facts 0", "vllm/v1/executor/multiproc_executor.py:443", "vllm/v1/engine/core.py:1751")
async def finish_says_why(make: EngineMaker) -> None:
    """The whole message of a refused finish, with both of vLLM's wrappings."""
    async with make() as engine:
        answer = await engine.client.post("/finish_weight_update")
        wanted = {
            "message": "Call to collective_rpc method failed: Worker failed with error "
            f"'{NO_MATCHING_START}', please check the stack trace above for the root cause",
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        }
        assert answer.json() == {"error": wanted}, f"expected {wanted}, found {answer.json()}"


CHECKS = (
    idle_takes_only_start,
    open_takes_no_second_start,
    open_keeps_its_channel,
    failed_update_ends_the_session,
    failed_finish_keeps_the_session,
    failed_start_opens_nothing,
    draft_needs_a_draft_model,
    unconfigured_refuses,
    pause_and_session_are_apart,
    finish_says_why,
)
