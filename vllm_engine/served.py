"""What a real engine serves, asked past every gate, and which weights it was served from.

A server on CPU cannot show its weights: vLLM packs linear layers away, and their digests cover
nothing (`covered_checksums`). What it serves can be compared: one greedy completion of a prompt
that holds every token of the vocabulary, with the log-probability of each token of the prompt and
of each new one, against the same from a reference model with the weights of a known step.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from fakes.model_spec import TINY_LLAMA

# Every row of the embedding is read. Seven is prime to the extent, so each token comes once.
PROMPT = tuple(7 * n % TINY_LLAMA.vocab for n in range(TINY_LLAMA.vocab))
NUM_TOKENS = 4  # of the final check: the first from the prefill, the others from decoding
GENERATE = "/inference/v1/generate"
NOT_JSON = "Out of range float values are not JSON compliant"  # the words of Python's json
EMPTY_DIGEST = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # SHA-256 of ""

# Natural log. Measured over five steps of three seeds: vLLM on CPU and the reference model differ
# by at most 1.9e-6; on a GPU, in float32 without TF32 (`server.CUDA_ENVIRONMENT`), nobody has
# measured yet. Two steps differ by at least 2.1; one tensor of another step, or one shard of a
# tensor, makes a difference of at least 1.08, a tensor or shard that is 1 % too large one of at
# least 0.0069, and a single value of any tensor that is 0.1 too large one of at least 0.0057.
TOLERANCE = 1e-4


class ServedError(Exception):
    """The server did not serve: the status, or the shape of its answer."""


class NotANumberError(ServedError):
    """The server served, from weights whose log-probabilities are no numbers."""


@dataclass(frozen=True)
class Served:
    """One greedy completion. ``P`` is the length of the prompt, ``T`` the number of new tokens.

    Attributes:
        tokens: [T], the new tokens.
        logprobs: [T], natural log of each new token's probability.
        prompt_logprobs: [P-1], of each token of the prompt but the first, given those before it.
        margins: [T], by how much the new token beat the second best; from a reference only.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    prompt_logprobs: tuple[float, ...]
    margins: tuple[float, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What the server served, and the label that its core showed when it made the last token."""

    served: Served
    label: str


def distance(found: Served, expected: Served) -> float:
    """Return the largest difference of a log-probability, natural log; infinite where they part.

    Args:
        found: with at most as many tokens as ``expected``.
        expected: from a reference, with margins. Where its two best tokens are closer than
            `TOLERANCE` either is right, and what follows is not compared.
    """
    if len(found.prompt_logprobs) != len(expected.prompt_logprobs):
        return math.inf
    pairs = list(zip(found.prompt_logprobs, expected.prompt_logprobs, strict=True))
    for index, token in enumerate(found.tokens):
        pairs.append((found.logprobs[index], expected.logprobs[index]))
        if token != expected.tokens[index]:
            if expected.margins[index] > TOLERANCE:
                return math.inf
            break
    differences = [abs(a - b) for a, b in pairs]
    return math.inf if any(map(math.isnan, differences)) else max(differences)


def matching_step(
    found: Served, steps: Iterable[int], expected: Callable[[int], Served]
) -> int | None:
    """Return the first of ``steps`` whose weights serve the same, or ``None``.

    Args:
        steps: candidates, the likely ones first.
        expected: gives what the weights of a step serve; called only as far as needed.
    """
    for step in steps:
        if distance(found, expected(step)) <= TOLERANCE:
            return step
    return None


async def ask(http: aiohttp.ClientSession, url: str, num_tokens: int = NUM_TOKENS) -> Answer | None:
    """Have a server complete `PROMPT` greedily.

    Args:
        http: bounds the wait, or not: a paused engine lets the request wait.
        url: the server's own.
        num_tokens: >= 1.

    Returns:
        What was served; ``None`` where the request was aborted, as a pause may do.

    Raises:
        NotANumberError: the forward pass gave NaN, which vLLM cannot put into its answer.
        ServedError: another status than 200, or an answer without what was asked for.
        aiohttp.ClientError: no answer.
        TimeoutError: as ``http`` says.

    Source: vLLM 0.32, ``entrypoints/scale_out/token_in_token_out``. Its route is the only one that
    tells the label behind each token, and it serves log-probabilities without a tokenizer, which
    ``/v1/completions`` refuses. It needs the server's ``--enable-scale-out``.
    """
    body = {
        "token_ids": PROMPT,
        "sampling_params": {
            "max_tokens": num_tokens,
            "temperature": 0,
            "logprobs": 0,  # of the chosen token alone
            "prompt_logprobs": 0,
            "ignore_eos": True,
            "detokenize": False,
        },
        # What is in the prefix cache came from weights of an earlier moment.
        "cache_salt": uuid.uuid4().hex,
    }
    async with http.post(f"{url}{GENERATE}", json=body) as response:
        text = await response.text()
        if response.status != 200 and NOT_JSON in text:  # 400, as of a bad request
            raise NotANumberError(
                f"{GENERATE}: expected log-probabilities, found {text[:400]}. "
                "The weights hold, or lead to, NaN."
            )
        if response.status != 200:
            raise ServedError(
                f"{GENERATE}: expected status 200, found {response.status}: {text[:400]}. "
                "Start the server with --enable-scale-out, and see its log."
            )
        return parse(await response.json())


def parse(answer: Mapping[str, Any]) -> Answer | None:
    """Return what an answer of `GENERATE` says; ``None`` for a request that was aborted.

    Raises:
        ServedError: it lacks the log-probabilities or the label.
    """
    choice = answer["choices"][0]
    if choice["finish_reason"] == "abort" or not choice["token_ids"]:
        return None
    try:
        rows = answer["prompt_logprobs"][1:]
        served = Served(
            tokens=tuple(choice["token_ids"]),
            logprobs=tuple(entry["logprob"] for entry in choice["logprobs"]["content"]),
            prompt_logprobs=tuple(
                row[str(token)]["logprob"] for row, token in zip(rows, PROMPT[1:], strict=True)
            ),
        )
        label = choice["weight_versions"][-1]["version"]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ServedError(
            f"{GENERATE}: expected log-probabilities and the weight version, found {error!r} "
            f"missing in {str(answer)[:400]}. Compare the route with vLLM 0.32's."
        ) from error
    return Answer(served, label)


def covered_checksums(checksums: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of ``/weight_checker`` that cover something.

    vLLM on CPU packs the weights of linear layers into another form and leaves an empty parameter
    behind, whose digest is that of no bytes: it says nothing of the weights, so it counts as
    missing, never as equal.
    """
    return {name: digest for name, digest in checksums.items() if digest != EMPTY_DIGEST}
