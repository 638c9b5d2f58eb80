"""Which weights a fake answers as, from what it serves alone."""

from __future__ import annotations

from fake_engines import SEED

from conformance.engine.contract import EngineUnderTest
from fakes import model_spec
from fakes.engine.generation import token_at

PROMPT = "differential"
NUM_TOKENS = 3  # of 64 each


async def served_step(engine: EngineUnderTest, newest: int) -> int | None:
    """Return the step, from ``newest`` down to 0, whose weights explain a completion's tokens."""
    body = {"prompt": PROMPT, "max_tokens": NUM_TOKENS, "return_token_ids": True}
    answer = await engine.client.post("/v1/completions", json=body)
    tokens = answer.json()["choices"][0]["token_ids"]
    for step in range(newest, -1, -1):
        checksums = model_spec.expected_checksums(SEED, step, engine.workers)
        weights = model_spec.fingerprint(checksums)
        if tokens == [token_at(PROMPT, index, weights) for index in range(NUM_TOKENS)]:
            return step
    return None
