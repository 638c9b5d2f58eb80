"""Tokens and publications reach the journal in an order that can be judged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest
from stand_ins import expected_one

from fakes.model_spec import TINY_LLAMA, expected_checksums, fingerprint
from harness.contracts import Json
from vllm_engine import token_stream
from vllm_engine.known_weights import UNMATCHED, KnownWeights
from vllm_engine.served import Answer, NotANumberError, Served, ServedError
from vllm_engine.token_stream import Publications, TokenStream

SEED = 7


def _name(step: int) -> str:
    return fingerprint(expected_checksums(SEED, step, 1, shape=TINY_LLAMA))


def _served(step: int) -> Served:
    whole = expected_one(step)
    return Served(whole.tokens[:1], whole.logprobs[:1], whole.prompt_logprobs)


class World:
    """A stream without a server, and its journal."""

    def __init__(self, pushes: int) -> None:
        self.events: list[tuple[str, Any]] = []
        weights = KnownWeights(expected_one, seed=SEED, workers=1)
        for number in range(1, pushes + 1):
            weights.begin_push(number)
        self.publications = Publications(self._record)
        http: Any = None  # nothing is asked here
        self.stream = TokenStream(
            http, "", weights=weights, publications=self.publications, record=self._record
        )

    def _record(self, event: str, /, **fields: Json) -> None:
        found = (
            fields["version"] if event == "version" else (fields["fingerprint"], fields["version"])
        )
        self.events.append((event, found))

    async def play(self, script: Sequence[tuple[str, Any]]) -> None:
        """Publish labels and take tokens as they arrive; ``settle`` lets everything run."""
        taking = []
        for number, (what, value) in enumerate(script):
            if what == "publish":
                self.publications.publish(value)
            else:
                step, label = value
                answer = Answer(_served(step), label)
                taking.append(asyncio.create_task(self.stream.take(number, answer)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.gather(*taking)


# fmt: off
CASES = [
    # id                  what arrives, in order                           in the journal, in order
    ("in-order",          [("token", (0, "default")), ("publish", "1"), ("token", (1, "1"))],
                          [("token", (0, "default")), ("version", "1"), ("token", (1, "1"))]),
    ("token-first",       [("token", (1, "1")), ("publish", "1")],
                          [("version", "1"), ("token", (1, "1"))]),
    ("old-token-late",    [("publish", "1"), ("token", (0, "default"))],
                          [("version", "1"), ("token", (0, "default"))]),
    ("two-behind",        [("token", (2, "2")), ("publish", "1"), ("publish", "2")],
                          [("version", "1"), ("version", "2"), ("token", (2, "2"))]),
    ("unpublished",       [("token", (1, "default")), ("publish", "1")],
                          [("token", (1, "default")), ("version", "1")]),
    ("torn",              [("publish", "1"), ("token", (3, "1"))],
                          [("version", "1"), ("token", (None, "1"))]),
]
# fmt: on


@pytest.mark.parametrize(
    ("script", "journal"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_order(script: list[tuple[str, Any]], journal: list[tuple[str, Any]]) -> None:
    """A token is recorded with its own label, and never before that label's publication."""
    world = World(pushes=2)
    asyncio.run(world.play(script))
    expected = []
    for event, value in journal:
        if event == "token":
            step, label = value
            value = (fingerprint(UNMATCHED) if step is None else _name(step), label)
        expected.append((event, value))
    assert world.events == expected


def test_a_label_that_nobody_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token under a label that never passed the gateway is recorded all the same."""
    monkeypatch.setattr(token_stream, "PUBLICATION_LIMIT_S", 0.02)
    world = World(pushes=1)
    asyncio.run(world.play([("token", (1, "foreign"))]))
    assert world.events == [("token", (_name(1), "foreign"))]


def test_tokens_of_weights_that_are_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were served, so they are recorded; an engine that does not serve gives no token."""
    answers = iter([ServedError("dead"), aiohttp.ClientError(), NotANumberError("nan"), None])
    world = World(pushes=1)

    async def ask(http: Any, url: str, num_tokens: int) -> Answer | None:
        answer = next(answers)
        if answer is None:
            raise asyncio.CancelledError
        raise answer

    monkeypatch.setattr(token_stream, "ask", ask)
    monkeypatch.setattr(token_stream, "RETRY_S", 0)
    monkeypatch.setattr(token_stream, "BETWEEN_REQUESTS_S", 0)
    world.publications.publish("1")
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(world.stream.run())
    assert world.events == [("version", "1"), ("token", (fingerprint(UNMATCHED), "1"))]


def test_known_weights_grow_with_the_pushes() -> None:
    """Weights of a push that nobody has begun match no step."""
    weights = KnownWeights(expected_one, seed=SEED, workers=1)
    assert weights.step_of(_served(0)) == 0
    assert weights.step_of(_served(1)) is None
    weights.begin_push(1)
    weights.begin_push(0)  # a relaunched trainer's connect
    assert [weights.step_of(_served(step)) for step in (0, 1, 2)] == [0, 1, None]
    assert weights.checksums(1) == expected_checksums(SEED, 1, 1, shape=TINY_LLAMA)
