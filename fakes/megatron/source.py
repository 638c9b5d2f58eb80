"""The trainer's weights as a stream of full tensors, gathered with real collectives.

Source: ``HfWeightSource`` of vime (``update_weight/common.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from fakes.megatron.parameters import ShardedParameters, owner_stages
from fakes.megatron.world import World
from fakes.model_spec import TINY, ModelShape, SourceTensor, source_tensors
from harness.contracts import Injector, Recorder


@dataclass(frozen=True)
class ParamMeta:
    """Name, dtype on the wire and full shape of one tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class MegatronWeightSource:
    """A re-iterable source; iterating is a collective of all ranks, tensor by tensor.

    Args:
        world: this rank's groups.
        seed: the scenario's.
        injector: visited at ``rank.gather`` before each tensor.
        record: gets a ``gather`` event as each begins and ends.
        shape: the model's extents.

    Attributes:
        step: the push whose weights are sent; set it before the push.
        draft: whether to send the draft model's weights instead of the target's.
    """

    def __init__(
        self,
        world: World,
        *,
        seed: int,
        injector: Injector,
        record: Recorder,
        shape: ModelShape = TINY,
    ) -> None:
        self.step = 0
        self.draft = False
        self._world = world
        self._seed = seed
        self._injector = injector
        self._record = record
        self._shape = shape
        self._parameters: dict[bool, tuple[int, ShardedParameters]] = {}  # draft -> step, weights
        self._metadata: dict[bool, list[ParamMeta]] = {}

    def metadata(self) -> list[ParamMeta]:
        """Return what an iteration yields; the first call for each ``draft`` is a full pass."""
        if self.draft not in self._metadata:
            self._metadata[self.draft] = [
                ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self
            ]
        return self._metadata[self.draft]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield ``(Hugging Face name, full float32 tensor)``, the same on every rank."""
        draft = self.draft
        parameters = self._current_parameters()
        stages = owner_stages(self._world.layout, draft=draft, shape=self._shape)
        for tensor in source_tensors(draft=draft, shape=self._shape):
            self._injector.reach("rank.gather", tensor=tensor.name)
            self._record("gather", tensor=tensor.name, phase="begin")
            full = self._gather(tensor, parameters, stages[tensor.name])
            self._record("gather", tensor=tensor.name, phase="end")
            yield tensor.name, full

    def _current_parameters(self) -> ShardedParameters:
        step, parameters = self._parameters.get(self.draft, (None, None))
        if parameters is None or step != self.step:
            parameters = ShardedParameters(
                self._world.layout,
                rank=self._world.rank,
                seed=self._seed,
                step=self.step,
                draft=self.draft,
                shape=self._shape,
            )
            self._parameters[self.draft] = (self.step, parameters)
        return parameters

    def _gather(
        self, tensor: SourceTensor, parameters: ShardedParameters, owner: int
    ) -> torch.Tensor:
        """Gather over the owner stage's tensor parallel ranks, then broadcast to the stages."""
        if self._world.coordinates["pp"] == owner:
            full = self._gather_shards(tensor, parameters.shard(tensor.name))
        else:
            full = torch.empty(tensor.shape)
        stages = self._world.ranks("pp")
        if len(stages) > 1:
            dist.broadcast(full, src=stages[owner], group=self._world.group("pp"))
        return full

    def _gather_shards(self, tensor: SourceTensor, shard: torch.Tensor) -> torch.Tensor:
        ranks = self._world.ranks("tp")
        if len(ranks) == 1:
            return shard.clone()
        shard = shard.contiguous()
        if tensor.shard_dim == 0:  # gathered straight into its place
            full = torch.empty(tensor.shape)
            self._all_gather(list(full.chunk(len(ranks))), shard)
            return full
        shards = [torch.empty_like(shard) for _ in ranks]
        self._all_gather(shards, shard)
        # Every rank holds all of a tensor that is not sharded; the gather keeps ranks in step.
        return shards[0] if tensor.shard_dim is None else torch.cat(shards, dim=tensor.shard_dim)

    def _all_gather(self, outputs: list[torch.Tensor], shard: torch.Tensor) -> None:
        """Fill ``outputs``, one a rank of the tensor parallel group, with each rank's shard.

        The group's own method is what ``dist.all_gather`` calls; in a process as short-lived as
        this one the checks around it cost more than the collective.
        """
        self._world.group("tp").allgather([outputs], [shard]).wait()
