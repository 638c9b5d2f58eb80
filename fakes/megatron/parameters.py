"""The parameters that one rank holds: its stage's layers, its experts, its tensor shards."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch

from fakes.megatron.layout import Layout
from fakes.model_spec import (
    TINY,
    ModelShape,
    SourceTensor,
    full_bytes,
    shard_bytes,
    source_tensors,
)


@cache
def owner_stages(layout: Layout, *, draft: bool, shape: ModelShape = TINY) -> dict[str, int]:
    """Return the pipeline stage that holds each source tensor, by its name.

    The embedding lies on the first stage; the final norm and the head lie on the last.
    """
    num_layers = shape.num_draft_layers if draft else shape.num_layers
    stages: dict[str, int] = {}
    stage = 0
    for tensor in source_tensors(draft=draft, shape=shape):
        if tensor.layer is not None:
            stage = layout.stage_of_layer(tensor.layer, num_layers)
        elif stages:
            stage = layout.pipeline - 1
        stages[tensor.name] = stage
    return stages


def owner_of_expert(layout: Layout, tensor: SourceTensor, shape: ModelShape) -> int | None:
    """Return the expert parallel rank that holds a tensor; ``None`` where every one does."""
    if tensor.expert is None:
        return None
    return tensor.expert * layout.expert // shape.num_experts


class ShardedParameters:
    """One model's parameters as a Megatron rank stores them, q, k, v and gate, up fused.

    Args:
        layout: the trainer's parallelism.
        rank: global rank.
        seed: the scenario's.
        step: the push that sends these weights.
        draft: the draft model instead of the target.
        shape: the model's extents.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        rank: int,
        seed: int,
        step: int,
        draft: bool,
        shape: ModelShape = TINY,
    ) -> None:
        place = layout.coordinates(rank)
        stages = owner_stages(layout, draft=draft, shape=shape)
        parts: dict[str, list[torch.Tensor]] = {}
        self._rows: dict[str, tuple[str, int, int]] = {}  # source tensor -> parameter, start, rows
        for tensor in source_tensors(draft=draft, shape=shape):
            elsewhere = owner_of_expert(layout, tensor, shape) not in (None, place["ep"])
            if stages[tensor.name] != place["pp"] or elsewhere:
                continue
            shard = _shard(tensor, seed=seed, step=step, rank=place["tp"], size=layout.tensor)
            fused = parts.setdefault(tensor.param, [])
            self._rows[tensor.name] = (tensor.param, sum(map(len, fused)), len(shard))
            fused.append(shard)
        self._parameters = {name: torch.cat(shards) for name, shards in parts.items()}

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield this rank's parameters, under the engine's names."""
        return iter(self._parameters.items())

    def shard(self, name: str) -> torch.Tensor:
        """Return this rank's shard of one source tensor, a view into its parameter.

        Raises:
            KeyError: another stage, or another expert parallel rank, holds it.
        """
        parameter, start, rows = self._rows[name]
        return self._parameters[parameter].narrow(0, start, rows)


def shard_shape(tensor: SourceTensor, size: int) -> list[int]:
    """Return the shape of one of ``size`` tensor parallel shards."""
    return [
        extent // size if dim == tensor.shard_dim else extent
        for dim, extent in enumerate(tensor.shape)
    ]


def _shard(tensor: SourceTensor, *, seed: int, step: int, rank: int, size: int) -> torch.Tensor:
    data = full_bytes(seed, step, tensor)
    part = bytearray(shard_bytes(data, tensor.shape, tensor.shard_dim, rank, size))
    return torch.frombuffer(part, dtype=torch.float32).view(shard_shape(tensor, size))
