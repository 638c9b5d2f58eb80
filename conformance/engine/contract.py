"""What a check is given, and how it talks to an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

Json = Any
HEARTBEATS, HEARTBEAT_S = 20, 0.001  # in which any request would have been answered
RELEASED_S = 5.0  # within which a request that hung must end once it was released

BUSY = "Cannot release a trainer connection during a weight update"
NOT_CONFIGURED = "Weight transfer not configured. Please set weight_transfer_config"
NOT_STARTED = "start_weight_update must be called before update_weights."
NO_DRAFT = "Draft model weight update requested, but no draft model is configured."
NO_MATCHING_START = "finish_weight_update called without a matching start_weight_update."
ALREADY_ACTIVE = (
    "start_weight_update called while a weight update is already active. "
    "Call finish_weight_update first."
)
ON_META = "Cannot copy out of meta tensor; no data!"
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class EngineUnderTest(Protocol):
    """One fresh engine, running, and what it takes to push weights into it.

    Attributes:
        client: sends requests to the engine.
        workers: tensor-parallel size.
        names: every tensor of the model, in the order of a push, under its Hugging Face name.
        draft_names: those of the draft model; empty without one.
        fused: the names of the tensors that make up one fused layer, in slot order. The first
            holds at least half of its elements, but not all.
        empty_update: an ``update_info`` that brings no tensors and that every worker accepts.
        refused_update: an ``update_info`` that a worker refuses before anything arrives.
    """

    client: httpx.AsyncClient
    workers: int
    names: Sequence[str]
    draft_names: Sequence[str]
    fused: Sequence[str]
    empty_update: Json
    refused_update: Json

    async def init(self) -> httpx.Response:
        """Request ``/init_weight_transfer_engine`` and open the channel."""

    async def update(
        self, step: int, names: Sequence[str] | None = None, *, misshapen: str | None = None
    ) -> httpx.Response:
        """Request one ``/update_weights``, and deliver the tensors of ``step`` for it.

        Args:
            step: which weights; 0 is what the engine holds at the start.
            names: the tensors to bring, all of the target model's by default.
            misshapen: the one among them that is to have a wrong shape.
        """

    def checksums(self, step: int) -> Mapping[str, str]:
        """Return what ``/weight_checker`` must answer for exactly the weights of ``step``."""

    async def release(self) -> None:
        """Let the worker that hangs go on. Only where the maker offers `Need.HANGS`."""

    async def die(self) -> None:
        """Let the engine core die of a lost worker. Only where the maker offers `Need.DIES`."""


class EngineMaker(Protocol):
    """Makes one fresh engine; leaving the context ends it.

    What a maker cannot make it does not offer (`rules.Need`), and no check asks it for that.
    """

    def __call__(
        self,
        *,
        workers: int = 1,
        configured: bool = True,
        draft: bool = False,
        failing: Mapping[str, int] | None = None,
        hanging: Mapping[str, int] | None = None,
    ) -> AbstractAsyncContextManager[EngineUnderTest]:
        """Make an engine.

        Args:
            workers: tensor-parallel size.
            configured: whether it has weight transfer at all.
            draft: whether it has a draft model.
            failing: RPC -> worker that raises in the first run of that RPC: start and finish in
                place of the transfer engine's own work, ``reset_lora_state`` (which is no RPC) at
                the end of a finish.
            hanging: RPC -> worker that hangs at the first run of that RPC, until it is released.
        """


@dataclass(frozen=True)
class Step:
    """One request and the answer that it must get.

    Attributes:
        request: ``POST /pause?mode=keep``.
        status: of the answer.
        says: part of the answer's text; the error's message, where it is an error.
        body: sent as JSON.
    """

    request: str
    status: int = 200
    says: str = ""
    body: Json = None


async def converse(engine: EngineUnderTest, steps: Sequence[Step]) -> None:
    """Send the requests in order.

    Raises:
        AssertionError: an answer is not what its step says.
    """
    for number, step in enumerate(steps, start=1):
        method, path = step.request.split(" ", 1)
        answer = await engine.client.request(method, path, json=step.body)
        expect(answer, step.status, step.says, told=f"step {number}, {step.request}")


def expect(answer: httpx.Response, status: int, says: str = "", *, told: str) -> None:
    """Compare one answer.

    Raises:
        AssertionError: status or text differ.
    """
    found = said(answer)
    if answer.status_code != status or says not in found:
        raise AssertionError(
            f"{told}: expected {status} {says!r}, found {answer.status_code} {found!r}."
        )


def said(answer: httpx.Response) -> str:
    """Return an answer's text: the error's message where it is one of vLLM's error bodies."""
    try:
        body = answer.json()
    except ValueError:
        return answer.text
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        return str(body["error"]["message"])
    return answer.text


async def checksums(engine: EngineUnderTest) -> Mapping[str, str]:
    """Return the engine's own checksums.

    Raises:
        AssertionError: it does not give them.
    """
    answer = await engine.client.post("/weight_checker", json={"action": "checksum"})
    expect(answer, 200, told="POST /weight_checker")
    found: Mapping[str, str] = answer.json()["checksums"]
    return found


async def holds(engine: EngineUnderTest, step: int) -> None:
    """Require that the engine holds exactly the weights of ``step``.

    Raises:
        AssertionError: some parameter differs; names them.
    """
    found, wanted = await checksums(engine), engine.checksums(step)
    differ = sorted(
        key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)
    )
    if differ:
        raise AssertionError(
            f"weights: expected exactly those of step {step}, but {', '.join(differ)} differ."
        )


async def complete(engine: EngineUnderTest, prompt: str = "conformance") -> Json:
    """Return the first choice of a short completion.

    Raises:
        AssertionError: the engine does not serve it.
    """
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "return_token_ids": True}
    answer = await engine.client.post("/v1/completions", json=body)
    expect(answer, 200, told="POST /v1/completions")
    return answer.json()["choices"][0]


@asynccontextmanager
async def stuck(engine: EngineUnderTest, *steps: Step) -> AsyncIterator[None]:
    """Send requests that a hanging worker leaves unanswered until the end of the block.

    Before and after the block ``/health`` is asked often enough for these to have been answered
    as well. Then the worker is released, and the answers must be those of the steps.

    Raises:
        AssertionError: one was answered before, or wrongly after.
    """
    waiting = []
    for step in steps:
        method, path = step.request.split(" ", 1)
        request = engine.client.request(method, path, json=step.body)
        waiting.append(asyncio.create_task(request))
    try:
        await _let_time_pass(engine)
        yield
        await _let_time_pass(engine)
        for step, task in zip(steps, waiting, strict=True):
            if task.done():
                answer = task.result()
                raise AssertionError(
                    f"{step.request}: expected no answer, found {answer.status_code} "
                    f"{said(answer)!r}."
                )
    finally:
        await engine.release()
        answers = await asyncio.wait_for(asyncio.gather(*waiting), RELEASED_S)
    for step, answer in zip(steps, answers, strict=True):
        expect(answer, step.status, step.says, told=f"{step.request}, once it was released")


async def _let_time_pass(engine: EngineUnderTest) -> None:
    """Wait as long as an answer would take: that none comes is no event to wait for."""
    for _ in range(HEARTBEATS):
        await converse(engine, [Step("GET /health")])
        await asyncio.sleep(HEARTBEAT_S)


START = Step("POST /start_weight_update", says="Weight update started")
FINISH = Step("POST /finish_weight_update", says="Weight update finished")


def refused(request: str, error: str, body: Json = None) -> Step:
    """Return a step that some worker refuses with ``error``, in vLLM's wrapping."""
    return Step(
        request, 500, f"collective_rpc method failed: Worker failed with error '{error}", body
    )


START_DRAFT = Step("POST /start_draft_weight_update", says="Draft weight update started")
START_REFUSED = refused("POST /start_weight_update", ALREADY_ACTIVE)
FINISH_REFUSED = refused("POST /finish_weight_update", NO_MATCHING_START)


def version_is(version: str) -> Step:
    """Return the step that requires a weight version."""
    return Step("GET /weight_info", 200, f'{{"weight_version":"{version}"}}')


def update(
    engine: EngineUnderTest, *, on: Sequence[bool] = (True,), status: int, says: str
) -> Step:
    """Return an update that brings nothing; the workers where ``on`` is false refuse it."""
    payload = [engine.empty_update if accepts else engine.refused_update for accepts in on]
    info = payload[0] if len(payload) == 1 else payload
    return Step("POST /update_weights", status, says, {"update_info": info})
