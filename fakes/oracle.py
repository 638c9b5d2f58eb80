"""The expectation of which weights an engine holds, computed from the model's description alone."""

from __future__ import annotations

from collections.abc import Mapping

from fakes.model_spec import SHAPES, expected_checksums, fingerprint


class ModelOracle:
    """Implements `harness.contracts.WeightOracle` for the tiny model."""

    def expected(
        self, *, seed: int, step: int, workers: int, draft: bool, model: str = "fake"
    ) -> str:
        shape = SHAPES[model]
        return fingerprint(expected_checksums(seed, step, workers, draft=draft, shape=shape))

    def fingerprint(self, checksums: Mapping[str, str]) -> str:
        return fingerprint(dict(checksums))
