"""The oracle on a real server: it names the right weights, and sees every parameter."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from live_server import LiveServer
from safetensors.torch import save_file

from fakes.model_spec import TINY_LLAMA, SourceTensor, expected_checksums, source_tensors
from harness.launcher import Launcher
from vllm_engine.pool import ServerPool
from vllm_engine.reference import Reference, load_tensors
from vllm_engine.served import (
    NUM_TOKENS,
    PROMPT,
    TOLERANCE,
    NotANumberError,
    Served,
    covered_checksums,
    distance,
    matching_step,
)
from vllm_engine.tiny_model import write_model

SEED = 7
CLEAR = 10.0  # agreement and difference are this factor away from the tolerance, at least
Tensors = Mapping[str, torch.Tensor]


class Loader:
    """Loads any weights into a server, by vLLM's own reload from files."""

    def __init__(self, live: LiveServer, directory: Path) -> None:
        self.live = live
        self._directory = directory
        self._numbers = itertools.count()
        self._format("safetensors")

    def _format(self, name: str) -> None:
        overrides = {"load_config": {"load_format": name}}
        assert self.live.rpc("update_config", overrides=overrides)[0] == 200

    def load(self, tensors: Tensors) -> Served:
        """Load full tensors and return what is served from them."""
        directory = self._directory / str(next(self._numbers))
        write_model(directory)
        save_file(dict(tensors), directory / "model.safetensors")
        status, text = self.live.rpc("reload_weights", weights_path=str(directory))
        assert status == 200, text
        return self.live.served().served

    def close(self) -> None:
        self._format("dummy")


@pytest.fixture(params=[1, 2], ids=["tp1", "tp2"])
def loader(
    request: pytest.FixtureRequest,
    runner: asyncio.Runner,
    launcher: Launcher,
    pool: ServerPool,
    tmp_path: Path,
) -> Iterator[Loader]:
    """A real server and a way to give it weights; it is left as it was found."""
    server = runner.run(pool.acquire(index=0, workers=request.param, doing=print))
    live = LiveServer(server, runner, tmp_path)
    loader = Loader(live, tmp_path)
    yield loader
    loader.close()
    live.reset()
    live.close()
    runner.run(pool.release(server))


def test_the_served_step_is_named(loader: Loader) -> None:
    """What is served agrees with the reference far below the tolerance, on every step of several
    seeds, and no other step's reference comes near it."""
    for seed in (1, 7, 11):
        reference = Reference(seed)

        def expected(step: int, reference: Reference = reference) -> Served:
            return reference.serve(step, PROMPT, NUM_TOKENS)

        for step in range(4):
            found = loader.load(load_tensors(seed, step))
            assert distance(found, expected(step)) < TOLERANCE / CLEAR
            assert matching_step(found, range(5), expected) == step
            others = [_prompt_distance(found, expected(k)) for k in range(5) if k != step]
            assert min(others) > 1.0


def _prompt_distance(found: Served, expected: Served) -> float:
    """Return the largest difference over the prompt alone, which is finite."""
    pairs = zip(found.prompt_logprobs, expected.prompt_logprobs, strict=True)
    return max(abs(a - b) for a, b in pairs)


def _parts() -> Iterator[tuple[str, SourceTensor, Callable[[torch.Tensor], torch.Tensor]]]:
    """Yield each tensor whole, and each half of it that one worker of two holds."""
    for source in source_tensors(shape=TINY_LLAMA):
        yield f"{source.name}", source, lambda tensor: tensor
        if source.shard_dim is not None:
            for rank in (0, 1):

                def shard(
                    tensor: torch.Tensor, dim: int = source.shard_dim, rank: int = rank
                ) -> torch.Tensor:
                    return tensor.chunk(2, dim)[rank]

                yield f"{source.name} of worker {rank}", source, shard


def test_every_parameter_is_seen(loader: Loader) -> None:
    """Any one tensor, or one worker's shard of it, that is of an earlier step, 1 % too large, or
    wrong in a single value, moves the log-probabilities far beyond the tolerance."""
    expected = Reference(SEED).serve(1, PROMPT, NUM_TOKENS)
    old = load_tensors(SEED, 0)
    moved: dict[str, float] = {}
    for name, source, part in _parts():
        spoilt: Tensors = load_tensors(SEED, 1)
        part(spoilt[source.name]).copy_(part(old[source.name]))
        moved[f"{name}: of step 0"] = _prompt_distance(loader.load(spoilt), expected)
        spoilt = load_tensors(SEED, 1)
        part(spoilt[source.name]).mul_(1.01)
        moved[f"{name}: 1 % too large"] = _prompt_distance(loader.load(spoilt), expected)
        spoilt = load_tensors(SEED, 1)
        one = part(spoilt[source.name])
        one[(0,) * one.dim()] += 0.1
        moved[f"{name}: one value"] = _prompt_distance(loader.load(spoilt), expected)
    assert len(moved) == 3 * (12 + 2 * 9)
    assert {name: by for name, by in moved.items() if by < CLEAR * TOLERANCE} == {}
    least = min(moved, key=lambda name: moved[name])
    print(f"least moved: {least}: {moved[least]:.4g}")
    # The reference model moves by as much: it is the weights that moved the server.
    assert distance(loader.load(load_tensors(SEED, 1)), expected) < TOLERANCE / CLEAR


def test_a_server_and_a_reference_are_wrong_alike(loader: Loader) -> None:
    """Torn weights are served as the reference serves the same torn weights."""
    torn = dict(load_tensors(SEED, 1))
    torn["model.norm.weight"] = load_tensors(SEED, 0)["model.norm.weight"]
    expected = Reference(SEED).serve_tensors(torn, PROMPT, NUM_TOKENS)
    assert distance(loader.load(torn), expected) < TOLERANCE / CLEAR


def test_weights_that_are_no_numbers(loader: Loader) -> None:
    """vLLM cannot put such log-probabilities into JSON; that is told apart from not serving."""
    spoilt = load_tensors(SEED, 1)
    spoilt["model.norm.weight"][0] = math.nan
    with pytest.raises(NotANumberError):
        loader.load(spoilt)
    loader.load(load_tensors(SEED, 1))


def test_what_the_checksums_of_a_cpu_cover(loader: Loader) -> None:
    """vLLM's digests of linear layers are those of nothing, whatever the weights: they count as
    missing. The others are the model's own."""
    seen = []
    for step in (0, 1):
        loader.load(load_tensors(SEED, step))
        answer = loader.live.http.post("/weight_checker", json={"action": "checksum"})
        found = answer.json()["checksums"]
        expected = expected_checksums(SEED, step, loader.live.workers, shape=TINY_LLAMA)
        assert found.keys() == expected.keys()
        covered = covered_checksums(found)
        assert covered == {name: expected[name] for name in covered}
        assert {name.rpartition(":")[2] for name in found.keys() - covered.keys()} == {
            "model.layers.0.self_attn.qkv_proj.weight",
            "model.layers.0.self_attn.o_proj.weight",
            "model.layers.0.mlp.gate_up_proj.weight",
            "model.layers.0.mlp.down_proj.weight",
        }
        seen.append({name: found[name] for name in found.keys() - covered.keys()})
    assert seen[0] == seen[1], "they do not even change with the weights"
