"""What is served, from which weights, and how an engine dies of serving without any.

Source: vLLM 0.32, ``v1/engine/core.py`` (an exception in a step is fatal) and
``entrypoints/serve/instrumentator/health.py``.
"""

from __future__ import annotations

from conformance.engine.contract import (
    DEAD,
    FINISH,
    START,
    EngineMaker,
    EngineUnderTest,
    Step,
    checksums,
    complete,
    converse,
    expect,
)
from conformance.engine.rules import Need, proves

COMPLETION = Step("POST /v1/completions", 500, DEAD, {"prompt": "x", "max_tokens": 2})


async def _push(engine: EngineUnderTest, step: int) -> None:
    await converse(engine, [START])
    expect(await engine.update(step), 200, told=f"update to step {step}")
    await converse(engine, [FINISH])


@proves("facts 7", "vllm/model_executor/model_loader/reload/layerwise.py:147", needs=[Need.SERVES])
async def tokens_follow_the_weights(make: EngineMaker) -> None:
    """The same prompt and weights give the same tokens; other weights give others."""
    async with make() as engine:
        await engine.init()
        before = (await complete(engine))["token_ids"]
        assert (await complete(engine))["token_ids"] == before, "expected the same tokens again"
        await _push(engine, 1)
        after = (await complete(engine))["token_ids"]
        assert after != before, f"expected new weights to show, found {after} both times"
        await _push(engine, 0)
        again = (await complete(engine))["token_ids"]
        assert again == before, f"expected {before} with the old weights, found {again}"


@proves("facts 8", "vllm/entrypoints/rl/online/api_router.py", needs=[Need.TP2, Need.EXACT])
async def checksums_compare(make: EngineMaker) -> None:
    """``compare`` names what differs from a baseline, and ``reset`` makes everything differ."""
    async with make(workers=2) as engine:
        baseline = dict(await checksums(engine))
        compare = {"action": "compare", "baseline": baseline}
        same = Step("POST /weight_checker", says='{"match":true,"mismatches":[]}', body=compare)
        reset = Step("POST /weight_checker", says='{"status":"reset"}', body={"action": "reset"})
        await converse(engine, [same, reset])
        answer = await engine.client.post("/weight_checker", json=compare)
        found = answer.json()
        assert found == {"match": False, "mismatches": sorted(baseline)}, f"found {found}"


@proves(
    "facts 1.1",
    "vllm/model_executor/model_loader/reload/layerwise.py:267",
    needs=[Need.SERVES],
)
async def serving_before_the_finish_is_fatal(make: EngineMaker) -> None:
    """Every weight has come and can be read, but what has buffers alone waits for the finish."""
    async with make() as engine:
        await converse(engine, [START])
        expect(await engine.update(1), 200, told="the whole update")
        await checksums(engine)
        await converse(engine, [COMPLETION])


@proves("facts 1.1", "facts 6.6", "vllm/v1/engine/core.py:1508", needs=[Need.SERVES])
async def serving_without_weights_is_fatal(make: EngineMaker) -> None:
    """A completion in an open session kills the engine: 500 for everything, health 503."""
    async with make() as engine:
        await converse(engine, [Step("GET /health"), START, Step("GET /health"), COMPLETION])
        await converse(
            engine,
            [
                Step("GET /health", 503),
                Step("POST /finish_weight_update", 500, DEAD),
                Step("GET /weight_info", 500, DEAD),
                Step("GET /is_paused", 500, f"Failed to fetch pause status: {DEAD}"),
                COMPLETION,
            ],
        )


@proves("facts 1.1", "vllm/v1/engine/core.py:2061", needs=[Need.SERVES])
async def a_paused_engine_survives_a_push(make: EngineMaker) -> None:
    """Paused, an engine whose weights are on meta lives; resumed after finish, it serves."""
    async with make() as engine:
        await converse(engine, [Step("POST /pause"), START, FINISH, Step("POST /resume")])
        await complete(engine)


@proves("facts 6.9", "vllm/entrypoints/rl/online/metrics.py:25", needs=[Need.FRESH])
async def operations_in_flight(make: EngineMaker) -> None:
    """The gauge is absent before the first weight operation, and 0 after it."""
    gauge = "vllm:rl_weight_update_operations_in_flight"
    async with make() as engine:
        before = (await engine.client.get("/metrics")).text
        assert gauge not in before, f"expected no {gauge}, found {before}"
        await converse(
            engine,
            [START, Step("GET /metrics", says=f'{gauge}{{operation="start"}} 0.0')],
        )


@proves("facts 8", "vllm/entrypoints/rl/online/api_router.py", needs=[Need.TP2])
async def world_size(make: EngineMaker) -> None:
    """The world size counts the workers."""
    for workers in (1, 2):
        async with make(workers=workers) as engine:
            size = Step("GET /get_world_size?include_dp=true", says=f'{{"world_size":{workers}}}')
            await converse(engine, [size])


CHECKS = (
    tokens_follow_the_weights,
    checksums_compare,
    serving_without_weights_is_fatal,
    serving_before_the_finish_is_fatal,
    a_paused_engine_survives_a_push,
    operations_in_flight,
    world_size,
)
