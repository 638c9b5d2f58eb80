"""The calls that a sequence is made of: each plays itself, and writes its source for a check."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import httpx

from conformance.differential.source import (
    Code,
    expect_call,
    in_converse,
    literal,
    statements,
    step_of,
    update_of,
)
from conformance.engine.contract import EngineUnderTest, Json, said, update

UNKNOWN_TENSOR = "model.layers.999.weight"
CHECKSUM = {"action": "checksum"}


class Call(Protocol):
    """One call that is made on both engines."""

    async def play(self, engine: EngineUnderTest) -> httpx.Response:
        """Make the call."""

    def view(self, answer: httpx.Response) -> str:
        """Return of the answer's text what must be the same on both engines."""

    def code(self, status: int, says: str) -> Code:
        """Return the source that makes this call and requires this answer."""

    def simpler(self) -> Sequence[Call]:
        """Return calls that would do as well, if the difference remains with them."""


@dataclass(frozen=True)
class Request:
    """A request with a JSON body.

    Attributes:
        request: ``POST /pause?mode=keep``.
        body: sent as JSON; nothing is sent for ``None``.
        opaque: whether what it returns is the engine's own affair: then only which of the results
            are null is compared, which is what a shifted reply shows.
    """

    request: str
    body: Json = None
    opaque: bool = False

    async def play(self, engine: EngineUnderTest) -> httpx.Response:
        method, path = self.request.split(" ", 1)
        return await engine.client.request(method, path, json=self.body)

    def view(self, answer: httpx.Response) -> str:
        if not self.opaque or answer.status_code != 200:
            return said(answer)
        results = answer.json()["results"]
        return json.dumps([result if result is None else "..." for result in results])

    def code(self, status: int, says: str) -> Code:
        return in_converse(step_of(self.request, status, "" if self.opaque else says, self.body))

    def simpler(self) -> Sequence[Call]:
        bare = Request(self.request.partition("?")[0])
        return () if bare == self or self.opaque else (bare,)


COMPLETION = Request("POST /v1/completions", {"prompt": [1, 2, 3], "max_tokens": 2})


@dataclass(frozen=True)
class Checksum:
    """``/weight_checker``; what its digests mean is compared elsewhere (`sides.Player.weights`)."""

    async def play(self, engine: EngineUnderTest) -> httpx.Response:
        return await engine.client.post("/weight_checker", json=CHECKSUM)

    def view(self, answer: httpx.Response) -> str:
        return "" if answer.status_code == 200 else said(answer)

    def code(self, status: int, says: str) -> Code:
        says = "" if status == 200 else says
        return in_converse(step_of("POST /weight_checker", status, says, CHECKSUM))

    def simpler(self) -> Sequence[Call]:
        return ()


@dataclass(frozen=True)
class Later:
    """A completion that is sent while the engines are paused, and answered some time later."""

    async def play(self, engine: EngineUnderTest) -> httpx.Response:
        return await COMPLETION.play(engine)

    def view(self, answer: httpx.Response) -> str:
        return said(answer) if answer.status_code != 200 else ending(answer)

    def code(self, status: int, says: str) -> Code:
        return statements("waiting = asyncio.create_task(complete(engine))")

    def simpler(self) -> Sequence[Call]:
        return ()


@dataclass(frozen=True)
class Starve:
    """A completion that both engines are asked for while they have no weights."""

    async def play(self, engine: EngineUnderTest) -> httpx.Response:
        return await COMPLETION.play(engine)

    def view(self, answer: httpx.Response) -> str:
        return said(answer) if answer.status_code != 200 else ending(answer)

    def code(self, status: int, says: str) -> Code:
        says = "" if status == 200 else says
        return in_converse(step_of(COMPLETION.request, status, says, COMPLETION.body))

    def simpler(self) -> Sequence[Call]:
        return ()


def ending(answer: httpx.Response) -> str:
    """Return why a completion ended."""
    return str(answer.json()["choices"][0]["finish_reason"])


@dataclass(frozen=True)
class Init:
    """The engine's own ``/init_weight_transfer_engine``, which opens its channel."""

    async def play(self, engine: EngineUnderTest) -> httpx.Response:
        return await engine.init()

    def view(self, answer: httpx.Response) -> str:
        return said(answer)

    def code(self, status: int, says: str) -> Code:
        return expect_call("await engine.init()", status, says, "init")

    def simpler(self) -> Sequence[Call]:
        return ()


@dataclass(frozen=True)
class Part:
    """Some of the model's tensors: ``engine.names[start:stop]``.

    Attributes:
        of: the attribute of the engine: ``names``, ``fused`` or ``draft_names``.
    """

    of: str = "names"
    start: int | None = None
    stop: int | None = None

    def __str__(self) -> str:
        bounds = ("" if end is None else str(end) for end in (self.start, self.stop))
        return f"engine.{self.of}[{':'.join(bounds)}]"

    def names(self, engine: EngineUnderTest) -> list[str]:
        """Return the tensors' names on this engine."""
        named: Sequence[str] = getattr(engine, self.of)
        return list(named[self.start : self.stop])


@dataclass(frozen=True)
class Update:
    """One ``/update_weights`` with tensors.

    Attributes:
        step: which weights.
        part: which tensors; all, as an engine sends them, for ``None``.
        unknown: whether a tensor follows that the model does not have.
        misshapen: whether the last tensor of the part has a wrong shape.
    """

    step: int
    part: Part | None = None
    unknown: bool = False
    misshapen: bool = False

    async def play(self, engine: EngineUnderTest) -> httpx.Response:
        if self.part is None and not self.unknown:
            return await engine.update(self.step)
        names = (self.part or Part()).names(engine)
        misshapen = names[-1] if self.misshapen and names else None
        return await engine.update(
            self.step, [*names, *[UNKNOWN_TENSOR] * self.unknown], misshapen=misshapen
        )

    def view(self, answer: httpx.Response) -> str:
        return said(answer)

    def code(self, status: int, says: str) -> Code:
        part = self.part or Part()
        arguments = [str(self.step)]
        if self.unknown:
            arguments.append(f"[*{part}, {literal(UNKNOWN_TENSOR)}]")
        elif self.part is not None:
            arguments.append(str(part))
        if self.misshapen:
            arguments.append(f"misshapen={part}[-1]")
        call = f"await engine.update({', '.join(arguments)})"
        return expect_call(call, status, says, f"update {self.step}")

    def simpler(self) -> Sequence[Call]:
        others = (
            Update(self.step),
            Update(self.step, Part("fused", stop=1)),
            replace(self, part=Part(stop=1)),
        )
        return others[: others.index(self)] if self in others else others


@dataclass(frozen=True)
class Payload:
    """One ``/update_weights`` that brings nothing; the workers where ``on`` is false refuse it.

    ``on`` with one entry is one payload for all workers; with more it is a list.
    """

    on: tuple[bool, ...]

    async def play(self, engine: EngineUnderTest) -> httpx.Response:
        method, path = (step := update(engine, on=self.on, status=0, says="")).request.split(" ", 1)
        return await engine.client.request(method, path, json=step.body)

    def view(self, answer: httpx.Response) -> str:
        return said(answer)

    def code(self, status: int, says: str) -> Code:
        return in_converse(update_of(self.on, status, says))

    def simpler(self) -> Sequence[Call]:
        return ()
