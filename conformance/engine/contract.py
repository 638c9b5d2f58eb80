"""What a check is given, and how it talks to an engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

Json = Any

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
        fused: the names of the tensors that make up one fused layer, in slot order. The first
            holds at least half of its elements, but not all.
        empty_update: an ``update_info`` that brings no tensors and that every worker accepts.
        refused_update: an ``update_info`` that a worker refuses before anything arrives.
    """

    client: httpx.AsyncClient
    workers: int
    names: Sequence[str]
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
            names: the tensors to bring, all by default.
            misshapen: the one among them that is to have a wrong shape.
        """

    def checksums(self, step: int) -> Mapping[str, str]:
        """Return what ``/weight_checker`` must answer for exactly the weights of ``step``."""


class EngineMaker(Protocol):
    """Makes one fresh engine; leaving the context ends it."""

    def __call__(
        self, *, workers: int = 1, configured: bool = True, failing: Mapping[str, int] | None = None
    ) -> AbstractAsyncContextManager[EngineUnderTest]:
        """Make an engine.

        Args:
            workers: tensor-parallel size.
            configured: whether it has weight transfer at all.
            failing: RPC -> worker whose first run of that RPC raises. An engine that cannot be
                made to fail raises `CannotFail`.
        """


class CannotFail(Exception):
    """This engine cannot be made to fail; what needs it is skipped."""


Check = Callable[[EngineMaker], Awaitable[None]]


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


START = Step("POST /start_weight_update", says="Weight update started")
FINISH = Step("POST /finish_weight_update", says="Weight update finished")


def refused(request: str, error: str, body: Json = None) -> Step:
    """Return a step that some worker refuses with ``error``, in vLLM's wrapping."""
    return Step(
        request, 500, f"collective_rpc method failed: Worker failed with error '{error}", body
    )


START_REFUSED = refused("POST /start_weight_update", ALREADY_ACTIVE)
FINISH_REFUSED = refused("POST /finish_weight_update", NO_MATCHING_START)


def update(
    engine: EngineUnderTest, *, on: Sequence[bool] = (True,), status: int, says: str
) -> Step:
    """Return an update that brings nothing; the workers where ``on`` is false refuse it."""
    payload = [engine.empty_update if accepts else engine.refused_update for accepts in on]
    info = payload[0] if len(payload) == 1 else payload
    return Step("POST /update_weights", status, says, {"update_info": info})
