"""The tiny model that trainers and engines share: names, shapes, sharding and bytes.

Pure Python on purpose: the launcher computes the checksums that an engine must show after a push
from this file alone, without torch and without any of the code that moves tensors, so a fault in
that code cannot hide in its own expectation.

Weights are a function of ``(seed, step, name)``. ``step`` is the number of the push that sends
them, so every push sends different bytes.

The names, and which of them are fused, are those of a Llama model, so that the same trainer can
push to a real engine. Only the extents differ (`ModelShape`).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

ITEM_BYTES = 4  # float32
# The last byte of a float32: sign and high bits of the exponent.
_ABOUT_ONE = b"\x3f"  # in [0.5, 2)
# Of either sign, with a magnitude in [1/32, 1/8): activations neither vanish nor saturate.
_SMALL_SIGNED = b"\x3d" * 128 + b"\xbd" * 128


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Extents of one model: sizes of dimensions, and numbers of heads and layers."""

    hidden: int
    heads_q: int
    heads_kv: int
    head_dim: int
    intermediate: int
    vocab: int
    num_layers: int = 1
    num_draft_layers: int = 1
    num_experts: int = 0  # of each layer's MLP; 0 for a dense one


# Fake engines: as small as layouts of up to 16 shards allow.
TINY = ModelShape(hidden=32, heads_q=8, heads_kv=4, head_dim=4, intermediate=64, vocab=64)
# The same as a mixture of experts.
TINY_MOE = replace(TINY, intermediate=32, num_experts=4)
# Real engines: as small as vLLM's attention on CPU takes it (a head of 64), and two workers.
TINY_LLAMA = ModelShape(hidden=64, heads_q=2, heads_kv=2, head_dim=64, intermediate=128, vocab=128)
SHAPES = {"fake": TINY, "fake_moe": TINY_MOE, "vllm": TINY_LLAMA}


@dataclass(frozen=True)
class SourceTensor:
    """One tensor as the trainer sends it, under its Hugging Face name.

    ``shape`` is the full (unsharded) shape. ``shard_dim`` is the dimension that tensor parallel
    ranks split, or ``None`` where every rank holds all of it. ``param`` is the engine's parameter
    that it is loaded into, as shard ``slot`` of ``num_slots`` (q, k, v of qkv; gate, up of
    gate_up; one slot elsewhere). ``layer`` is the decoder layer, or ``None``; ``expert`` the expert
    of its MLP, or ``None``.
    """

    name: str
    shape: tuple[int, ...]
    shard_dim: int | None
    param: str
    slot: int
    num_slots: int
    layer: int | None
    expert: int | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the full tensor in bytes."""
        size = ITEM_BYTES
        for extent in self.shape:
            size *= extent
        return size


@lru_cache(maxsize=8)
def source_tensors(*, draft: bool = False, shape: ModelShape = TINY) -> tuple[SourceTensor, ...]:
    """Return what one pass sends, in order: the target model's tensors, or the draft model's."""
    return tuple(_tensors(shape, draft=draft))


def _tensors(model: ModelShape, *, draft: bool) -> Iterator[SourceTensor]:
    prefix = "draft." if draft else "model."
    num_layers = model.num_draft_layers if draft else model.num_layers
    q_rows, kv_rows = model.heads_q * model.head_dim, model.heads_kv * model.head_dim
    vocab, hidden = model.vocab, model.hidden

    def one(name: str, shape: tuple[int, ...], dim: int | None, layer: int | None) -> SourceTensor:
        return SourceTensor(name, shape, dim, name, 0, 1, layer)

    if not draft:
        yield one(f"{prefix}embed_tokens.weight", (vocab, hidden), 0, None)
    for layer in range(num_layers):
        at = f"{prefix}layers.{layer}."
        yield one(f"{at}input_layernorm.weight", (hidden,), None, layer)
        qkv = f"{at}self_attn.qkv_proj.weight"
        for slot, (letter, rows) in enumerate((("q", q_rows), ("k", kv_rows), ("v", kv_rows))):
            yield SourceTensor(
                f"{at}self_attn.{letter}_proj.weight", (rows, hidden), 0, qkv, slot, 3, layer
            )
        yield one(f"{at}self_attn.o_proj.weight", (hidden, q_rows), 1, layer)
        yield one(f"{at}post_attention_layernorm.weight", (hidden,), None, layer)
        yield from _experts(model, at, layer) if model.num_experts else _mlp(model, at, layer)
    yield one(f"{prefix}norm.weight", (hidden,), None, None)
    if not draft:
        yield one("lm_head.weight", (vocab, hidden), 0, None)


def _mlp(model: ModelShape, at: str, layer: int) -> Iterator[SourceTensor]:
    down, gate_up = f"{at}mlp.down_proj.weight", f"{at}mlp.gate_up_proj.weight"
    shape = (model.intermediate, model.hidden)
    for slot, half in enumerate(("gate", "up")):
        yield SourceTensor(f"{at}mlp.{half}_proj.weight", shape, 0, gate_up, slot, 2, layer)
    yield SourceTensor(down, shape[::-1], 1, down, 0, 1, layer)


def _experts(model: ModelShape, at: str, layer: int) -> Iterator[SourceTensor]:
    """The router, then the experts' halves, which an engine holds as two parameters of all."""
    shape, number = (model.intermediate, model.hidden), model.num_experts
    router, w13, w2 = (f"{at}mlp.{name}.weight" for name in ("gate", "experts.w13", "experts.w2"))
    yield SourceTensor(router, (number, model.hidden), None, router, 0, 1, layer)
    for expert in range(number):
        for half, name in enumerate(("gate", "up")):
            full_name = f"{at}mlp.experts.{expert}.{name}_proj.weight"
            slot = 2 * expert + half
            yield SourceTensor(full_name, shape, 0, w13, slot, 2 * number, layer, expert)
    for expert in range(number):
        full_name = f"{at}mlp.experts.{expert}.down_proj.weight"
        yield SourceTensor(full_name, shape[::-1], 1, w2, expert, number, layer, expert)


@lru_cache(maxsize=256)
def full_bytes(seed: int, step: int, tensor: SourceTensor) -> bytes:
    """Return the bytes of the full tensor: float32, row major.

    Values of a matrix are of either sign with a magnitude in [1/32, 1/8); those of a norm's vector
    lie in [0.5, 2). None is infinite, denormal or not a number.

    ``step`` 0 is what an engine holds when it starts; push ``n`` sends step ``n``.
    """
    count = tensor.num_bytes // ITEM_BYTES
    noise = random.Random(f"{seed}:{step}:{tensor.name}").randbytes(3 * count)
    data = bytearray(ITEM_BYTES * count)
    data[0::4], data[1::4], data[2::4] = noise[0::3], noise[1::3], noise[2::3]
    matrix = len(tensor.shape) > 1
    data[3::4] = noise[0::3].translate(_SMALL_SIGNED) if matrix else _ABOUT_ONE * count
    return bytes(data)


def shard_bytes(
    data: bytes, shape: tuple[int, ...], dim: int | None, rank: int, size: int
) -> bytes:
    """Return what tensor-parallel rank ``rank`` of ``size`` holds of a row-major tensor."""
    if dim is None or size == 1:
        return data
    if dim == 0:
        step = len(data) // size
        return data[rank * step : (rank + 1) * step]
    rows, columns = shape[0], shape[1] * ITEM_BYTES
    width = columns // size
    starts = (row * columns + rank * width for row in range(rows))
    return b"".join(data[start : start + width] for start in starts)


@lru_cache(maxsize=64)
def expected_checksums(
    seed: int, step: int, workers: int, *, draft: bool = False, shape: ModelShape = TINY
) -> dict[str, str]:
    """Return what ``/weight_checker`` must answer for an engine that holds exactly step ``step``.

    Keys are vLLM's (``dp0:pp0:pcp0:tp<k>:<parameter>``), values SHA-256 of the parameter's bytes
    as that worker holds them: fused layers are the concatenation of their shards in slot order.
    """
    checksums = {}
    for worker in range(workers):
        params: dict[str, list[bytes]] = {}
        for tensor in source_tensors(draft=draft, shape=shape):
            data = full_bytes(seed, step, tensor)
            part = shard_bytes(data, tensor.shape, tensor.shard_dim, worker, workers)
            params.setdefault(tensor.param, []).append(part)
        for param, parts in params.items():
            digest = hashlib.sha256(b"".join(parts)).hexdigest()
            checksums[f"dp0:pp0:pcp0:tp{worker}:{param}"] = digest
    return checksums


def fingerprint(checksums: dict[str, str]) -> str:
    """Return one short name for the weights that a whole set of checksums stands for."""
    joined = "\n".join(f"{key} {checksums[key]}" for key in sorted(checksums))
    return hashlib.sha256(joined.encode()).hexdigest()[:16]
