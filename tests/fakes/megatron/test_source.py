"""The weight source: every rank yields every full tensor, and only by real collectives."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes.megatron.layout import Layout
from fakes.megatron.parameters import ShardedParameters, owner_stages
from fakes.megatron.source import MegatronWeightSource
from fakes.megatron.world import World
from fakes.model_spec import TINY, TINY_MOE, ModelShape, full_bytes, source_tensors
from harness.contracts import NoFaults, no_record
from tests.fakes.data_plane.forked import run_forked

SEED = 3

# fmt: off
LAYOUTS = [
    # id            layout                                model
    ("alone",       Layout(),                             TINY),
    ("tp2",         Layout(tensor=2),                     TINY),
    ("dp2",         Layout(data=2),                       TINY),
    ("tp2-dp2",     Layout(tensor=2, data=2),             TINY),
    ("pp2",         Layout(pipeline=2),                   TINY),
    ("tp2-pp2",     Layout(tensor=2, pipeline=2),         TINY),
    ("tp4",         Layout(tensor=4),                     TINY),
    ("ep2",         Layout(expert=2, data=2),             TINY_MOE),
    ("ep2-dp2",     Layout(expert=2, data=4),             TINY_MOE),
    ("tp2-ep2-pp2", Layout(tensor=2, expert=2, data=2, pipeline=2), TINY_MOE),
]
# fmt: on


class Visits(NoFaults):
    """An injector that only counts."""

    def __init__(self) -> None:
        self.tensors: list[str] = []

    def reach(self, point: str, /, **where: Any) -> None:
        assert point == "rank.gather"
        self.tensors.append(where["tensor"])


def yields_the_step(source: MegatronWeightSource, shape: ModelShape) -> bool:
    """Whether one pass yields exactly the tensors of the source's step."""
    specs = source_tensors(draft=source.draft, shape=shape)
    pairs = list(source)
    assert [name for name, _ in pairs] == [spec.name for spec in specs]
    return all(
        tuple(tensor.shape) == spec.shape
        and tensor.numpy().tobytes() == full_bytes(SEED, source.step, spec)
        for (_, tensor), spec in zip(pairs, specs, strict=True)
    )


@pytest.mark.parametrize(("layout", "shape"), [c[1:] for c in LAYOUTS], ids=[c[0] for c in LAYOUTS])
def test_every_rank_yields_every_tensor(layout: Layout, shape: ModelShape, tmp_path: Path) -> None:
    """Target and draft weights of each step arrive in full on every rank of every layout."""

    def rank(index: int) -> list[bool]:
        world = World(
            layout,
            rank=index,
            store_path=tmp_path / "store",
            timeout_s=10,
            kinds=("tp", "pp", "ep"),
        )
        source = MegatronWeightSource(
            world, seed=SEED, injector=NoFaults(), record=no_record, shape=shape
        )
        results = []
        for step in (1, 2):
            for draft in (False, True):
                source.step, source.draft = step, draft
                results.append(yields_the_step(source, shape))
        world.close()
        return results

    world_size = layout.world_size
    results = run_forked([lambda index=index: rank(index) for index in range(world_size)])
    assert results == [[True] * 4] * world_size


def test_first_metadata_is_a_pass(tmp_path: Path) -> None:
    """metadata() gathers every tensor once for each value of draft, and then no more."""

    def rank(index: int) -> list[Any]:
        visits = Visits()
        world = World(Layout(tensor=2), rank=index, store_path=tmp_path / "store", timeout_s=10)
        source = MegatronWeightSource(
            world, seed=SEED, injector=visits, record=lambda event, **fields: None
        )
        counts, agree = [], []
        for draft in (False, True, False):
            source.draft = draft
            before = len(visits.tensors)
            metadata = source.metadata()
            counts.append(len(visits.tensors) - before)
            agree.append(
                [(meta.name, meta.dtype, meta.shape) for meta in metadata]
                == [(spec.name, torch.float32, spec.shape) for spec in source_tensors(draft=draft)]
            )
        return [counts, agree]

    expected = [[len(source_tensors()), len(source_tensors(draft=True)), 0], [True] * 3]
    assert run_forked([lambda: rank(0), lambda: rank(1)]) == [expected] * 2


def test_gather_waits_for_the_peer(tmp_path: Path) -> None:
    """A rank alone in a pass blocks in the first gather, and its event says which."""

    def alone() -> list[Any]:
        events: list[Any] = []
        world = World(Layout(tensor=2), rank=0, store_path=tmp_path / "store", timeout_s=10)
        source = MegatronWeightSource(
            world,
            seed=SEED,
            injector=NoFaults(),
            record=lambda event, **fields: events.append([event, fields]),
        )
        thread = threading.Thread(target=lambda: next(iter(source)), daemon=True)
        thread.start()
        thread.join(0.1)
        return [thread.is_alive(), events]

    def absent() -> None:
        World(Layout(tensor=2), rank=1, store_path=tmp_path / "store", timeout_s=10)

    first = source_tensors()[0].name
    assert run_forked([alone, absent]) == [
        [True, [["gather", {"tensor": first, "phase": "begin"}]]],
        None,
    ]


def test_a_rank_holds_its_shard_alone() -> None:
    """Four ranks hold a quarter of each sharded parameter, and q, k, v lie fused."""
    parameters = dict(ShardedParameters(Layout(tensor=4), rank=1, seed=0, step=1, draft=False))
    qkv = parameters["model.layers.0.self_attn.qkv_proj.weight"]
    assert tuple(qkv.shape) == ((32 + 16 + 16) // 4, 32)
    assert tuple(parameters["model.layers.0.self_attn.o_proj.weight"].shape) == (32, 32 // 4)
    assert tuple(parameters["model.norm.weight"].shape) == (32,)


def test_stages_hold_disjoint_parameters() -> None:
    """With two stages the embedding and layer 0 lie on the first, the rest on the last."""
    layout = Layout(pipeline=2)
    held = [
        {name for name, _ in ShardedParameters(layout, rank=rank, seed=0, step=1, draft=False)}
        for rank in (0, 1)
    ]
    assert held[0].isdisjoint(held[1])
    assert {spec.param for spec in source_tensors()} == held[0] | held[1]
    stages = owner_stages(layout, draft=False)
    assert (stages["model.embed_tokens.weight"], stages["lm_head.weight"]) == (0, 1)


def test_expert_ranks_hold_disjoint_experts() -> None:
    """An expert lies on one expert parallel rank; the router and attention lie on each."""
    layout = Layout(expert=2, data=2)
    held = [
        ShardedParameters(layout, rank=rank, seed=0, step=1, draft=False, shape=TINY_MOE)
        for rank in (0, 1)
    ]
    experts = [tensor for tensor in source_tensors(shape=TINY_MOE) if tensor.expert is not None]
    assert {tensor.expert for tensor in experts} == {0, 1, 2, 3}
    for tensor in experts:
        owner = 0 if tensor.expert in (0, 1) else 1
        assert tuple(held[owner].shard(tensor.name).shape) == tensor.shape
        with pytest.raises(KeyError):
            held[1 - owner].shard(tensor.name)
    for parameters in held:
        parameters.shard("model.layers.0.mlp.gate.weight")


def test_own_stage(tmp_path: Path) -> None:
    """A source of its own stage's tensors needs no rank of another stage, and together they yield
    the whole model."""

    def rank(index: int) -> list[str]:
        layout = Layout(pipeline=2)
        world = World(layout, rank=index, store_path=tmp_path / "store", timeout_s=10)
        source = MegatronWeightSource(
            world, seed=SEED, injector=NoFaults(), record=no_record, own_stage=True
        )
        return [name for name, _ in source]

    first, second = run_forked([lambda: rank(0), lambda: rank(1)])
    assert [*first, *second] == [tensor.name for tensor in source_tensors()]
    assert first
    assert second
