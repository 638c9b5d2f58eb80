"""How answers are compared with a reference, without a server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from vllm_engine.served import (
    EMPTY_DIGEST,
    PROMPT,
    TOLERANCE,
    Answer,
    Served,
    ServedError,
    covered_checksums,
    distance,
    matching_step,
    parse,
)

EXPECTED = Served(
    tokens=(5, 6, 7), logprobs=(-1.0, -2.0, -3.0), prompt_logprobs=(-4.0, -5.0), margins=(1, 0, 1)
)
FAR, NEAR = 10 * TOLERANCE, TOLERANCE / 10

# fmt: off
DISTANCES = [
    # id               what differs from the reference                       distance
    ("nothing",        {},                                                   0.0),
    ("fewer-tokens",   {"tokens": (5,), "logprobs": (-1.0,)},                0.0),
    ("no-tokens",      {"tokens": (), "logprobs": ()},                       0.0),
    ("a-prompt-token", {"prompt_logprobs": (-4.0, -5.25)},                   0.25),
    ("a-new-token",    {"logprobs": (-1.0, -2.0, -2.5)},                     0.5),
    ("other-token",    {"tokens": (4, 6, 7)},                                math.inf),
    ("near-tie",       {"tokens": (5, 9, 9), "logprobs": (-1.0, -2.0, 0.0)}, 0.0),
    ("near-tie-far",   {"tokens": (5, 9, 9), "logprobs": (-1.0, -2.5, 0.0)}, 0.5),
    ("other-length",   {"prompt_logprobs": (-4.0,)},                         math.inf),
    ("not-a-number",   {"logprobs": (-1.0, math.nan, -3.0)},                 math.inf),
    ("nan-first",      {"prompt_logprobs": (math.nan, -5.0)},                math.inf),
]
# fmt: on


@pytest.mark.parametrize(
    ("change", "expected"), [case[1:] for case in DISTANCES], ids=[case[0] for case in DISTANCES]
)
def test_distance(change: dict[str, Any], expected: float) -> None:
    """The largest difference counts; another token is one, unless the reference nearly ties."""
    found = replace(EXPECTED, margins=(), **change)
    assert distance(found, EXPECTED) == expected


def test_matching_step() -> None:
    """The first step within the tolerance is taken, and no reference is computed after it."""
    computed = []

    def expected(step: int) -> Served:
        computed.append(step)
        return replace(EXPECTED, prompt_logprobs=(-4.0 + {2: FAR, 1: NEAR, 0: 0.0}[step], -5.0))

    assert matching_step(EXPECTED, [2, 1, 0], expected) == 1
    assert computed == [2, 1]
    assert matching_step(EXPECTED, [2], expected) is None


def test_the_prompt_holds_every_token_once() -> None:
    """Every row of the embedding has a share in what is served."""
    assert sorted(PROMPT) == list(range(128))


def _answer() -> dict[str, Any]:
    rows = [{str(token): {"logprob": -float(n)}} for n, token in enumerate(PROMPT)]
    return {
        "prompt_logprobs": [None, *rows[1:]],
        "choices": [
            {
                "finish_reason": "length",
                "token_ids": [3, 4],
                "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]},
                "weight_versions": [
                    {"version": "1", "start": 0, "end": 1},
                    {"version": "2", "start": 1, "end": 2},
                ],
            }
        ],
    }


def test_parse() -> None:
    """Tokens, their log-probabilities, the prompt's, and the label behind the last token."""
    prompt = tuple(-float(n) for n in range(1, len(PROMPT)))
    assert parse(_answer()) == Answer(Served((3, 4), (-0.5, -0.25), prompt), "2")


def test_parse_an_aborted_request() -> None:
    """Nothing was served: a pause with ``abort`` came first."""
    assert parse({"choices": [{"finish_reason": "abort", "token_ids": []}]}) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [("prompt_logprobs", None), ("prompt_logprobs", [None, {}]), ("weight_versions", None)],
)
def test_parse_what_is_missing(key: str, value: Any) -> None:
    """An answer without what was asked for is an error, not a match of nothing."""
    answer = _answer()
    (answer if key in answer else answer["choices"][0])[key] = value
    with pytest.raises(ServedError, match="expected log-probabilities and the weight version"):
        parse(answer)


def test_empty_digests_are_missing() -> None:
    """A digest of no bytes covers nothing, on whichever worker, and is not equal to another."""
    checksums: Mapping[str, str] = {
        "dp0:pp0:pcp0:tp0:model.norm.weight": "74e2",
        "dp0:pp0:pcp0:tp0:model.layers.0.mlp.down_proj.weight": EMPTY_DIGEST,
        "dp0:pp0:pcp0:tp1:model.layers.0.mlp.down_proj.weight": EMPTY_DIGEST,
    }
    assert covered_checksums(checksums) == {"dp0:pp0:pcp0:tp0:model.norm.weight": "74e2"}
