"""What a push leaves in the weights: whole, old, or torn.

Source: vLLM 0.32, ``model_executor/model_loader/reload/layerwise.py``.
"""

from __future__ import annotations

from hashlib import sha256

from conformance.engine.contract import (
    FINISH,
    FINISH_REFUSED,
    ON_META,
    START,
    EngineMaker,
    EngineUnderTest,
    Step,
    checksums,
    converse,
    expect,
    holds,
)
from conformance.engine.rules import Need, proves

CHECKSUM = {"action": "checksum"}
CPU_UTILS = "vllm/model_executor/layers/utils.py:470"
NOTHING = sha256(b"").hexdigest()


async def _fail_inside_the_fused_layer(engine: EngineUnderTest, step: int) -> None:
    """Start, and let the update fail when only the first shard of the fused layer was loaded."""
    await converse(engine, [START])
    first, second, *_ = engine.fused
    head = engine.names[: engine.names.index(first) + 1]
    answer = await engine.update(step, [*head, "model.layers.999.weight"])
    expect(answer, 500, "There is no module or parameter named", told=f"update up to {second}")


@proves(
    "facts 1.1",
    "vllm/model_executor/model_loader/reload/layerwise.py:147",
    needs=[Need.EXACT, Need.TP2, Need.TP4],
)
async def a_push_is_whole(make: EngineMaker) -> None:
    """Start, every tensor, finish: exactly the new weights, at every tensor-parallel size."""
    for workers in (1, 2, 4):
        async with make(workers=workers) as engine:
            await holds(engine, 0)
            for step in (1, 2):
                await engine.init()
                await converse(engine, [START])
                expect(await engine.update(step), 200, told=f"update with {workers} workers")
                await converse(engine, [FINISH])
                await holds(engine, step)


@proves(
    "facts 8.2 vector 3",
    "vllm/model_executor/model_loader/reload/layerwise.py:258",
    needs=[Need.EXACT],
)
async def an_empty_session_changes_nothing(make: EngineMaker) -> None:
    """Start and finish without an update put the old weights back."""
    async with make() as engine:
        await converse(engine, [START, FINISH])
        await holds(engine, 0)


@proves("facts 1.1", "vllm/model_executor/model_loader/reload/layerwise.py:83", needs=[Need.EXACT])
async def an_open_session_has_no_weights(make: EngineMaker) -> None:
    """Between start and finish the weights are on meta, and their checksum an error."""
    async with make() as engine:
        await converse(engine, [START, Step("POST /weight_checker", 500, ON_META, CHECKSUM)])
        await converse(engine, [FINISH])
        await holds(engine, 0)


@proves("facts 8.2 vector 11", "vllm/model_executor/model_loader/reload/layerwise.py:97")
async def a_failed_update_leaves_no_weights(make: EngineMaker) -> None:
    """After a failed update the weights stay on meta until start and finish."""
    async with make() as engine:
        await engine.init()
        await _fail_inside_the_fused_layer(engine, 1)
        await converse(engine, [Step("POST /weight_checker", 500, ON_META, CHECKSUM)])
        await converse(engine, [START, FINISH])
        await checksums(engine)


@proves(
    "facts 8.2 vector 9",
    "vllm/model_executor/model_loader/reload/layerwise.py:275",
    needs=[Need.EXACT],
)
async def a_partial_push_is_committed_torn(make: EngineMaker) -> None:
    """Finish commits a layer of which one shard arrived: 200, the version set, bytes neither."""
    async with make() as engine:
        await engine.init()
        await converse(engine, [START])
        expect(await engine.update(1, engine.fused[:1]), 200, told="update of one shard")
        finish = Step("POST /finish_weight_update", body={"weight_version": "torn"})
        await converse(engine, [finish, Step("GET /weight_info", 200, "torn")])
        found, old, new = await checksums(engine), engine.checksums(0), engine.checksums(1)
        torn = sorted(key for key in found if found[key] not in (old[key], new[key]))
        assert len(torn) == 1, f"expected the fused layer alone to be torn, found {torn}"


@proves(
    "facts 8.2 vector 10",
    "facts 6.1",
    "vllm/model_executor/model_loader/reload/layerwise.py:97",
    needs=[Need.EXACT, Need.GPU_LAYERS],
)
async def a_straight_resend_is_torn(make: EngineMaker) -> None:
    """A resend right after a failure in a fused layer: every request says 200, the layer is torn.

    Start skips a layer that is still armed, so the shard that had arrived counts twice.
    """
    async with make() as engine:
        await engine.init()
        await _fail_inside_the_fused_layer(engine, 1)
        await converse(engine, [START])
        expect(await engine.update(1), 200, told="the resend")
        await converse(engine, [FINISH])
        found, new = await checksums(engine), engine.checksums(1)
        torn = sorted(key for key in found if found[key] != new[key])
        assert len(torn) == 1, f"expected the fused layer alone to be torn, found {torn}"


@proves(
    "facts 8.2 vector 10",
    "vllm/model_executor/model_loader/reload/layerwise.py:226",
    needs=[Need.EXACT],
)
async def a_scrubbed_resend_is_whole(make: EngineMaker) -> None:
    """Start, finish, start, everything, finish: exactly the new weights after a failure."""
    async with make() as engine:
        await engine.init()
        await _fail_inside_the_fused_layer(engine, 1)
        await converse(engine, [START, FINISH, START])
        expect(await engine.update(1), 200, told="the resend")
        await converse(engine, [FINISH])
        await holds(engine, 1)


@proves(
    "facts 6.2",
    "vllm/model_executor/model_loader/reload/layerwise.py:163",
    needs=[Need.EXACT, Need.GPU_LAYERS],
)
async def a_second_copy_goes_past_the_reload(make: EngineMaker) -> None:
    """The same update twice in one session: complete layers take the second copy in place."""
    async with make() as engine:
        await engine.init()
        await converse(engine, [START])
        for step in (1, 2):
            expect(await engine.update(step), 200, told=f"update {step} of the session")
        await holds(engine, 2)
        await converse(engine, [FINISH])


@proves("facts 1.2", "vllm/model_executor/model_loader/weight_utils.py", needs=[Need.EXACT])
async def a_wrong_shape_is_refused(make: EngineMaker) -> None:
    """A tensor of the wrong shape fails the update with vLLM's text; other layers are intact."""
    async with make() as engine:
        await engine.init()
        await converse(engine, [START])
        norm = next(name for name in engine.names if "norm" in name)
        answer = await engine.update(1, [norm], misshapen=norm)
        expect(answer, 500, "Attempted to load weight (torch.Size([", told="a misshapen norm")
        await converse(engine, [START, FINISH])
        await holds(engine, 0)


@proves("facts 6.5", CPU_UTILS, needs=[Need.CPU_LAYERS])
async def packed_weights_digest_as_nothing(make: EngineMaker) -> None:
    """On a CPU the checksum of a linear layer is that of no bytes, before and after a push."""
    async with make() as engine:
        await engine.init()
        for step in (1, 2):
            digests = await checksums(engine)
            empty = {key for key, digest in digests.items() if digest == NOTHING}
            packed = {key for key in digests if "_proj." in key}
            assert packed <= empty, f"expected no bytes in {packed - empty}"
            await converse(engine, [START])
            expect(await engine.update(step), 200, told=f"update to step {step}")
            await converse(engine, [FINISH])


@proves("facts 8.2 vector 10", "facts 6.1", CPU_UTILS, needs=[Need.CPU_LAYERS])
async def a_straight_resend_is_refused_on_a_cpu(make: EngineMaker) -> None:
    """The layer counts as complete too early, is processed, and has no loader for the rest."""
    async with make() as engine:
        await engine.init()
        await _fail_inside_the_fused_layer(engine, 1)
        await converse(engine, [START])
        answer = await engine.update(1)
        expect(answer, 500, "object has no attribute 'weight_loader'", told="the resend")
        await converse(engine, [START, FINISH, START])
        expect(await engine.update(1), 200, told="the resend after a flush")
        await converse(engine, [FINISH])


@proves("facts 6.2", CPU_UTILS, needs=[Need.CPU_LAYERS])
async def a_second_copy_is_refused_on_a_cpu(make: EngineMaker) -> None:
    """The same update twice in one session: the second finds layers without a loader."""
    async with make() as engine:
        await engine.init()
        await converse(engine, [START])
        expect(await engine.update(1), 200, told="the first copy")
        answer = await engine.update(1)
        expect(answer, 500, "object has no attribute 'weight_loader'", told="the second copy")
        await converse(engine, [FINISH_REFUSED, START, FINISH])


CHECKS = (
    a_push_is_whole,
    an_empty_session_changes_nothing,
    an_open_session_has_no_weights,
    a_failed_update_leaves_no_weights,
    a_partial_push_is_committed_torn,
    a_straight_resend_is_torn,
    a_scrubbed_resend_is_whole,
    a_second_copy_goes_past_the_reload,
    a_wrong_shape_is_refused,
    packed_weights_digest_as_nothing,
    a_straight_resend_is_refused_on_a_cpu,
    a_second_copy_is_refused_on_a_cpu,
)
