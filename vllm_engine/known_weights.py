"""Names the weights behind what a real engine served: those of a known step, or of none."""

from __future__ import annotations

from collections.abc import Callable

from fakes.model_spec import TINY_LLAMA, expected_checksums, fingerprint
from vllm_engine.served import Served, matching_step

# What an engine shows whose answers no step explains; the digests of no weights.
UNMATCHED = {"served": "matches no step"}


class KnownWeights:
    """The steps that an engine may hold by now: 0 to that of the push under way.

    Args:
        expected: gives what the weights of a step serve (`vllm_engine.reference`); thread safe.
        seed: of the weights.
        workers: tensor-parallel size of the engine, which its checksums depend on.
    """

    def __init__(self, expected: Callable[[int], Served], *, seed: int, workers: int) -> None:
        self._expected = expected
        self._seed, self._workers = seed, workers
        self._last = 0
        self._expected(0)

    def begin_push(self, number: int) -> None:
        """A push is about to send the weights of step ``number``.

        Computes what they serve, so that judging a token later takes no time: its place in the
        journal, between publications, is that of its arrival.
        """
        self._expected(number)
        self._last = max(self._last, number)

    def step_of(self, served: Served) -> int | None:
        """Return the step whose weights served this, or ``None`` where none did."""
        return matching_step(served, range(self._last, -1, -1), self._expected)

    def checksums(self, step: int | None) -> dict[str, str]:
        """Return the checksums of an engine that holds exactly that step."""
        if step is None:
            return dict(UNMATCHED)
        return expected_checksums(self._seed, step, self._workers, shape=TINY_LLAMA)

    def fingerprint(self, step: int | None) -> str:
        """Return the short name of those weights; for ``None`` that of no step."""
        return fingerprint(self.checksums(step))
