"""The weight version: one string per engine that says less than it seems to.

Source: vLLM 0.32, ``v1/engine/async_llm.py`` (``finish_weight_update``) and ``v1/engine/core.py``.
"""

from __future__ import annotations

from conformance.engine.contract import (
    FINISH,
    FINISH_REFUSED,
    START,
    START_DRAFT,
    START_REFUSED,
    EngineMaker,
    Json,
    Step,
    converse,
    expect,
    holds,
    update,
    version_is,
)
from conformance.engine.rules import Need, proves

WORKER = "vllm/v1/worker/gpu_worker.py"
CORE = "vllm/v1/engine/core.py"
ASYNC_LLM = "vllm/v1/engine/async_llm.py"


def _publish(version: str) -> Step:
    return Step("POST /update_weight_version", body={"new_version": version})


def _finish(body: Json, status: int = 200) -> Step:
    return Step("POST /finish_weight_update", status, body=body)


@proves("facts 2", "vllm/v1/engine/core.py:140")
async def starts_as_default(make: EngineMaker) -> None:
    """A fresh engine says ``default``, and a finish without a version keeps that."""
    async with make() as engine:
        await converse(engine, [version_is("default"), START, FINISH, version_is("default")])
        await converse(engine, [START, _finish({"weight_version": None}), version_is("default")])
        await converse(engine, [START, _finish({}), version_is("default")])


@proves("facts 8.2 vector 3", "vllm/v1/engine/async_llm.py:1351", needs=[Need.EXACT])
async def finish_sets_it_without_an_update(make: EngineMaker) -> None:
    """Start and finish set the version though nothing was loaded; the empty string counts."""
    async with make() as engine:
        await converse(engine, [START, _finish({"weight_version": "a"}), version_is("a")])
        await holds(engine, 0)
        await converse(engine, [START, _finish({"weight_version": ""}), version_is("")])


@proves("facts 2", "vllm/v1/engine/async_llm.py:1353")
async def a_refused_finish_does_not_set_it(make: EngineMaker) -> None:
    """A finish that the workers refuse leaves the version alone."""
    async with make() as engine:
        await converse(engine, [_finish({"weight_version": "b"}, 500), version_is("default")])


@proves("facts 2", "vllm/entrypoints/rl/online/api_router.py")
async def misspelt_fields_are_ignored(make: EngineMaker) -> None:
    """A wrong field or a query parameter is answered 200 and sets nothing."""
    async with make() as engine:
        for request, body in (
            ("POST /finish_weight_update", {"version": "7"}),
            ("POST /finish_weight_update?weight_version=7", None),
        ):
            await converse(engine, [START, Step(request, 200, body=body), version_is("default")])


@proves("facts 2", "vllm/v1/engine/async_llm.py:1357", needs=[Need.UNCONFIGURED])
async def publish_sets_it_any_time(make: EngineMaker) -> None:
    """``/update_weight_version`` needs no session and asks no worker."""
    async with make(configured=False) as engine:
        publish = Step(
            "POST /update_weight_version",
            says='{"success":true,"new_version":"8"}',
            body={"new_version": "8"},
        )
        await converse(
            engine, [publish, version_is("8"), Step("POST /pause"), publish, version_is("8")]
        )


@proves("facts 8.2 vector 2", "vllm/v1/engine/async_llm.py:1353")
async def a_failed_push_keeps_it(make: EngineMaker) -> None:
    """After a failed update and a refused finish the version is the old one."""
    async with make() as engine:
        await engine.init()
        fails = update(engine, on=[False], status=500, says="Worker failed")
        await converse(engine, [START, fails, FINISH_REFUSED, START, FINISH, version_is("default")])


@proves("facts 2", f"{CORE}:1082")
async def publish_asks_for_no_session(make: EngineMaker) -> None:
    """It is set in an open session and after a failed update alike, and opens or ends neither."""
    async with make() as engine:
        await engine.init()
        fails = update(engine, on=[False], status=500, says="Worker failed")
        await converse(engine, [START, _publish("a"), version_is("a"), START_REFUSED])
        await converse(engine, [fails, _publish("b"), version_is("b"), FINISH_REFUSED])


@proves("facts 2", f"{CORE}:1082")
async def the_same_string_again(make: EngineMaker) -> None:
    """A version that was there before is set like any other: it cannot tell two pushes apart."""
    async with make() as engine:
        again = _finish({"weight_version": "1"})
        await converse(engine, [START, again, version_is("1"), START, again, version_is("1")])


@proves("facts 2", f"{ASYNC_LLM}:1351", needs=[Need.FAILS])
async def a_failed_finish_does_not_set_it(make: EngineMaker) -> None:
    """A finish that raised keeps the old version; a retry sets what the retry says, or nothing."""
    async with make(failing={"finish_weight_update": 0}) as engine:
        first = _finish({"weight_version": "c"}, 500)
        await converse(engine, [START, first, version_is("default"), FINISH, version_is("default")])
        await converse(engine, [START, _finish({"weight_version": "c"}), version_is("c")])


@proves("facts 6.8", f"{WORKER}:1602", needs=[Need.FAILS, Need.EXACT])
async def a_finish_may_fail_after_the_weights(make: EngineMaker) -> None:
    """A finish that fails in the LoRA reset: new weights, old version, and nothing to retry."""
    async with make(failing={"reset_lora_state": 0}) as engine:
        await engine.init()
        await converse(engine, [START])
        expect(await engine.update(1), 200, told="update to step 1")
        await converse(engine, [_finish({"weight_version": "1"}, 500), version_is("default")])
        await holds(engine, 1)
        await converse(engine, [FINISH_REFUSED, version_is("default"), _publish("1")])


@proves("facts 2", f"{ASYNC_LLM}:1351", needs=[Need.DRAFT, Need.EXACT])
async def a_draft_session_sets_it(make: EngineMaker) -> None:
    """There is one version for both models: a draft push publishes, though the target is old."""
    async with make(draft=True) as engine:
        await engine.init()
        await converse(engine, [START_DRAFT])
        expect(await engine.update(1, engine.draft_names), 200, told="update of the draft model")
        await converse(engine, [_finish({"weight_version": "1"}), version_is("1")])
        await holds(engine, 0)


CHECKS = (
    starts_as_default,
    finish_sets_it_without_an_update,
    a_refused_finish_does_not_set_it,
    misspelt_fields_are_ignored,
    publish_sets_it_any_time,
    a_failed_push_keeps_it,
    publish_asks_for_no_session,
    the_same_string_again,
    a_failed_finish_does_not_set_it,
    a_finish_may_fail_after_the_weights,
    a_draft_session_sets_it,
)
