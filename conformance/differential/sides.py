"""The two engines of a comparison, and everything that one of them shows after a step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

import httpx

from conformance.differential.calls import Call
from conformance.engine.contract import EngineMaker, EngineUnderTest, said

NOTHING = sha256(b"").hexdigest()  # how vLLM digests a parameter whose bytes lie elsewhere

Served = Callable[[EngineUnderTest, int], Awaitable[int | None]]
Weights = Mapping[str, frozenset[int] | None]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One kind of engine.

    Attributes:
        name: how a report calls it.
        make: makes a fresh one.
        served: tells, given an engine and the newest step of weights that it may hold, which step
            it answers as, from 0 on; ``None`` is none of them. Left out where it cannot serve.
        tidy: takes out of a text what is said otherwise by nature: names of classes, shapes of
            another model, the order of a set.
    """

    name: str
    make: EngineMaker
    served: Served | None = None
    tidy: Callable[[str], str] = str


@dataclass(frozen=True)
class Answer:
    """One answer: ``view`` is what of it is compared, ``says`` the whole text."""

    status: int
    says: str
    view: str

    def __str__(self) -> str:
        return f"{self.status} {self.says}"


NO_ANSWER = Answer(0, "no answer", "no answer")


@dataclass
class Player:
    """One side while one sequence is played."""

    side: Side
    engine: EngineUnderTest
    expected: dict[int, Mapping[str, str]] = field(default_factory=dict)

    def answer(self, call: Call, response: httpx.Response) -> Answer:
        """Return what of a response is compared."""
        view = self.side.tidy(call.view(response))
        return Answer(response.status_code, said(response), view)

    def weights(self, checksums: Mapping[str, str], newest: int) -> Weights:
        """Return of each parameter the steps, from 0 to ``newest``, whose bytes it holds.

        A parameter whose digest covers nothing has ``None``.
        """
        return {
            key: None if digest == NOTHING else self._steps(key, digest, newest)
            for key, digest in checksums.items()
        }

    def _steps(self, key: str, digest: str, newest: int) -> frozenset[int]:
        for step in range(newest + 1):
            if step not in self.expected:
                self.expected[step] = self.engine.checksums(step)
        return frozenset(
            step for step in range(newest + 1) if self.expected[step].get(key) == digest
        )
