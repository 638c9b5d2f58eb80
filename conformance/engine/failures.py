"""Every way an update can be refused: what ends the session and what does not.

Whatever a worker refuses ends its session, and the layers stay on the meta device; each way is a
rule, ``update_failure[unknown-name]``. A start and a finish put the engine right again.

Source: vLLM 0.32, ``v1/worker/gpu_worker.py:1571-1585`` and what it calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import httpx

from conformance.engine.contract import (
    FINISH,
    FINISH_REFUSED,
    ON_META,
    START,
    EngineMaker,
    EngineUnderTest,
    Step,
    converse,
    expect,
)
from conformance.engine.rules import Check, Need, proves

WRAPPED = "Call to collective_rpc method failed: Worker failed with error '"
Send = Callable[[EngineUnderTest], Awaitable[httpx.Response]]


def _info(change: Callable[[dict[str, object]], object]) -> Send:
    """Return a sender of an update whose ``update_info`` was changed."""

    async def send(engine: EngineUnderTest) -> httpx.Response:
        body = {"update_info": change(dict(engine.empty_update))}
        return await engine.client.post("/update_weights", json=body)

    return send


async def _unknown_name(engine: EngineUnderTest) -> httpx.Response:
    return await engine.update(1, ["nonsense.weight"])


def _misshapen(part: str) -> Send:
    """Return a sender of one tensor of a wrong shape, the first whose name has that part."""

    async def send(engine: EngineUnderTest) -> httpx.Response:
        name = next(name for name in engine.names if part in name)
        return await engine.update(1, [name], misshapen=name)

    return send


WORKER, BASE = "vllm/v1/worker/gpu_worker.py", "vllm/distributed/weight_transfer/base.py"
LENGTHS = "`{}` should be of the same size as `names`: got 1 and 0"
NORM_LOADER = "vllm/model_executor/model_loader/weight_utils.py"
VOCABULARY = "vllm/model_executor/layers/vocab_parallel_embedding.py"
PARAMETER = "vllm/model_executor/parameter.py"
NO_TEXT = "', please check"  # of an assertion

# way -> how, what the worker says, and where it is decided
WAYS: Mapping[str, tuple[Send, str, str]] = {
    "list-too-short": (_info(lambda _: []), "list index out of range", f"{WORKER}:1573"),
    "unknown-field": (
        _info(lambda info: {**info, "nope": 1}),
        "Invalid update_info for ",
        f"{BASE}:457",
    ),
    "missing-field": (_info(lambda _: {}), "Invalid update_info for ", f"{BASE}:457"),
    "dtypes-too-long": (
        _info(lambda info: {**info, "dtype_names": ["float32"]}),
        LENGTHS.format("dtype_names"),
        f"{BASE}:457",
    ),
    "shapes-too-long": (
        _info(lambda info: {**info, "shapes": [[1]]}),
        LENGTHS.format("shapes"),
        f"{BASE}:457",
    ),
    "unknown-name": (
        _unknown_name,
        "There is no module or parameter named 'nonsense' in ",
        "vllm/model_executor/models/utils.py:442",
    ),
    "misshapen-norm": (
        _misshapen("norm"),
        "Attempted to load weight (torch.Size([",
        NORM_LOADER,
    ),
    "misshapen-embedding": (_misshapen("embed_tokens"), NO_TEXT, VOCABULARY),
    "misshapen-head": (_misshapen("lm_head"), NO_TEXT, VOCABULARY),
    "misshapen-row-parallel": (_misshapen("o_proj"), NO_TEXT, f"{PARAMETER}:225"),
    "misshapen-shard": (_misshapen("q_proj"), "start (0) + length (", f"{PARAMETER}:193"),
}


def _failure(way: str) -> Check:
    send, says, place = WAYS[way]

    @proves("facts 1.2", "facts 8.2 vector 2", place)
    async def update_failure(make: EngineMaker) -> None:
        async with make() as engine:
            expect(await engine.init(), 200, told="init")
            await converse(engine, [START])
            expect(await send(engine), 500, WRAPPED + says, told=f"an update with {way}")
            checksum = Step("POST /weight_checker", 500, ON_META, {"action": "checksum"})
            await converse(engine, [checksum, FINISH_REFUSED, START, FINISH])
            await converse(engine, [Step(checksum.request, 200, body=checksum.body)])

    return update_failure


CELLS: Mapping[str, Check] = {f"update_failure[{way}]": _failure(way) for way in WAYS}


@proves("facts 1.2", f"{WORKER}:1582", needs=[Need.DRAFT])
async def a_failed_draft_update_arms_the_draft_alone(make: EngineMaker) -> None:
    """It leaves the target readable; a plain session is another, and no cure for the draft."""
    async with make(draft=True) as engine:
        expect(await engine.init(), 200, told="init")
        fails = Step("POST /update_weights", 500, WRAPPED, {"update_info": engine.refused_update})
        checksum = Step("POST /weight_checker", body={"action": "checksum"})
        draft = Step("POST /start_draft_weight_update")
        await converse(engine, [draft, fails, checksum, FINISH_REFUSED])
        await converse(engine, [START, FINISH, checksum, draft, FINISH, checksum])


CHECKS = (a_failed_draft_update_arms_the_draft_alone,)
