"""The trainer's weights as a stream of full tensors, gathered with real collectives.

Source: ``HfWeightSource`` of vime (``update_weight/common.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from fakes.megatron.parameters import ShardedParameters, owner_of_expert, owner_stages
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
        own_stage: yield only the tensors of this rank's pipeline stage, whose ranks then iterate
            by themselves.

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
        own_stage: bool = False,
    ) -> None:
        self.step = 0
        self.draft = False
        self._world = world
        self._seed = seed
        self._injector = injector
        self._record = record
        self._shape = shape
        self._own_stage = own_stage
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
        """Yield ``(Hugging Face name, full float32 tensor)``, the same on every rank.

        With ``own_stage`` the same on every rank of a pipeline stage.
        """
        draft = self.draft
        parameters = self._current_parameters()
        stages = owner_stages(self._world.layout, draft=draft, shape=self._shape)
        for tensor in source_tensors(draft=draft, shape=self._shape):
            if self._own_stage and stages[tensor.name] != self._world.coordinates["pp"]:
                continue
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
        """Gather over the tensor parallel ranks that hold it; they give it to the others.

        An expert first goes from the ranks that hold it to the other expert parallel ones, then
        everything from the owner's pipeline stage to the others.
        """
        place, world = self._world.coordinates, self._world
        expert_owner = owner_of_expert(world.layout, tensor, self._shape)
        if place["pp"] != owner or expert_owner not in (None, place["ep"]):
            full = torch.empty(tensor.shape)
        else:
            full = self._gather_shards(tensor, parameters.shard(tensor.name))
        if expert_owner is not None and place["pp"] == owner:
            self._broadcast(full, "ep", expert_owner)
        if not self._own_stage:
            self._broadcast(full, "pp", owner)
        return full

    def _broadcast(self, full: torch.Tensor, kind: str, owner: int) -> None:
        ranks = self._world.ranks(kind)
        if len(ranks) > 1:
            dist.broadcast(full, src=ranks[owner], group=self._world.group(kind))

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
