"""The two things that vLLM's trainer engines are given.

Source: ``VLLMWeightSyncClient`` and ``WeightSource`` of vLLM 0.32 (``weight_transfer/base.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from harness.contracts import Json


class WeightSyncClient(Protocol):
    """The engines' control plane; every method is synchronous. Only the sender calls it."""

    def init_weight_transfer_engine(self, init_info: dict[str, Json]) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: dict[str, Json]) -> None: ...

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


class ParamMeta(Protocol):
    """Name, dtype on the wire and full shape of one tensor."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


class WeightSource(Protocol):
    """A re-iterable stream of full tensors; iterating is a collective of all trainer ranks."""

    def metadata(self) -> Sequence[ParamMeta]: ...

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]: ...
