"""One worker's copy of a model, and vLLM's layerwise reload of it.

A layer is the module that owns a parameter (``qkv_proj``, ``input_layernorm``). A weight update
moves its parameter to the meta device, buffers what arrives, and writes it back when the layer has
received as many elements as it holds. Every quirk of that counting is kept on purpose, because
recovering from them is what the harness tests.

Source: vLLM 0.32, ``model_executor/model_loader/reload/layerwise.py`` and ``meta.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

import torch

from fakes import model_spec

GARBAGE_BYTE = 0xA5  # what uninitialised memory holds here, so that a torn layer is recognisable
VOCABULARY = ("embed_tokens", "lm_head")
# Module -> class, as an error names it: by the last part of the module's name.
CLASSES: Mapping[str, str] = {
    "model": "LlamaModel",
    "draft": "LlamaModel",
    "layers": "ModuleList",
    "self_attn": "LlamaAttention",
    "mlp": "LlamaMLP",
    "qkv_proj": "QKVParallelLinear",
    "o_proj": "RowParallelLinear",
    "gate": "ReplicatedLinear",
    "experts": "FusedMoE",
    "gate_up_proj": "MergedColumnParallelLinear",
    "down_proj": "RowParallelLinear",
    "input_layernorm": "RMSNorm",
    "post_attention_layernorm": "RMSNorm",
    "norm": "RMSNorm",
    "embed_tokens": "VocabParallelEmbedding",
    "lm_head": "ParallelLMHead",
}


@dataclass(frozen=True)
class Slot:
    """Where one source tensor goes: rows ``[start, start + rows)`` of the engine's parameter.

    ``source_rows`` are those of the tensor before it is split.
    """

    start: int
    rows: int
    shard_dim: int | None
    source_rows: int


@dataclass
class Layer:
    """One module with one parameter.

    Attributes:
        name: the module, ``model.layers.0.self_attn.qkv_proj``.
        kernel: the real parameter, whose storage outlives a reload. It still holds the old bytes
            while the layer is armed.
        weight: what the module shows: ``kernel``, or a meta tensor while the layer is armed.
        armed: whether a session waits for this layer's weights.
        wrapped: whether its loader buffers. A write-back that raises leaves the layer armed, but
            no longer wrapped.
        num_loaded: elements counted since the layer was armed.
        loaded: the tensors buffered since then, by slot. They alias what the transfer yielded.
    """

    name: str
    kernel: torch.Tensor
    slots: tuple[Slot, ...]
    rank: int
    weight: torch.Tensor = field(init=False)
    armed: bool = False
    wrapped: bool = False
    num_loaded: int = 0
    loaded: list[tuple[Slot, torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weight = self.kernel

    @property
    def param(self) -> str:
        return f"{self.name}.weight"

    def arm(self) -> None:
        """Show a meta tensor and wait for weights. An armed layer keeps its old progress."""
        if self.armed:
            return
        self.kernel = self.weight
        self.weight = self.kernel.to("meta")
        self.armed = self.wrapped = True
        self.num_loaded = 0

    def buffer(self, slot: Slot, tensor: torch.Tensor) -> None:
        """Take one tensor for later, and write the layer once enough elements were counted.

        A tensor for a layer that is complete is dropped.
        """
        if not self.armed:
            return
        self.loaded.append((slot, tensor))  # before the check, as vLLM does: a bad tensor stays
        self.num_loaded += self._copy(self.weight, slot, tensor)
        if self.num_loaded >= self.kernel.numel():
            self._process()

    def write(self, slot: Slot, tensor: torch.Tensor) -> None:
        """Load one tensor straight into the live parameter, outside any reload."""
        self._copy(self.weight, slot, tensor)

    def finalize(self) -> None:
        """Close the layer: the old parameter where nothing arrived, else whatever did arrive."""
        if not self.armed:
            return
        if self.num_loaded == 0:
            self.weight = self.kernel
        elif self.num_loaded < self.kernel.numel():
            self._process()
        self._reset()

    def restore(self) -> None:
        """Put the old parameter back and forget what was buffered."""
        if self.armed:
            self.weight = self.kernel
            self._reset()

    def _process(self) -> None:
        if self.weight.is_meta:
            self.weight = torch.empty_like(self.kernel)
            self.weight.view(torch.uint8).fill_(GARBAGE_BYTE)
        self.wrapped = False
        for slot, tensor in self.loaded:
            self._copy(self.weight, slot, tensor)
        self.kernel.copy_(self.weight)
        self.weight = self.kernel
        self._reset()

    def _reset(self) -> None:
        self.armed = self.wrapped = False
        self.num_loaded = 0
        self.loaded.clear()

    def _copy(self, param: torch.Tensor, slot: Slot, tensor: torch.Tensor) -> int:
        """Copy this worker's shard of a full tensor into its slot; return the elements copied."""
        part = param.narrow(0, slot.start, slot.rows)
        of_vocabulary = self.name.endswith(VOCABULARY)
        if of_vocabulary and tensor.size(0) != slot.source_rows:
            raise AssertionError  # vLLM's has no text, here and in the linear layers
        if slot.shard_dim is not None:
            extent = part.size(slot.shard_dim)
            tensor = tensor.narrow(slot.shard_dim, self.rank * extent, extent)
        if part.size() != tensor.size() and slot.shard_dim is None:
            raise AssertionError(
                f"Attempted to load weight ({tensor.size()}) into parameter ({part.size()})"
            )
        if part.size() != tensor.size() and not of_vocabulary:
            raise AssertionError
        part.copy_(tensor)
        return part.numel()


class Model:
    """The target or the draft model as one tensor-parallel worker holds it.

    Attributes:
        epoch: grows before every write; equal epochs mean equal bytes while the worker is idle.
    """

    def __init__(
        self,
        *,
        seed: int,
        rank: int,
        world_size: int,
        draft: bool = False,
        shape: model_spec.ModelShape = model_spec.TINY,
    ) -> None:
        self.draft = draft
        self.epoch = 0
        self._has_buffers = True
        self._rank = rank
        self._slots: dict[str, tuple[Layer, Slot]] = {}
        sources = model_spec.source_tensors(draft=draft, shape=shape)
        self.layers: tuple[Layer, ...] = tuple(self._build(sources, seed, rank, world_size))

    def _build(
        self, sources: Iterable[model_spec.SourceTensor], seed: int, rank: int, world_size: int
    ) -> Iterator[Layer]:
        for param, group in groupby(sources, key=lambda source: source.param):
            slots: dict[str, Slot] = {}
            shards = []
            start = 0
            for source in group:
                whole = bytearray(model_spec.full_bytes(seed, 0, source))
                full = torch.frombuffer(whole, dtype=torch.float32).view(source.shape)
                if source.shard_dim is not None:
                    full = full.chunk(world_size, dim=source.shard_dim)[rank]
                shards.append(full)
                slots[source.name] = Slot(start, full.size(0), source.shard_dim, source.shape[0])
                start += full.size(0)
            name = param.removesuffix(".weight")
            layer = Layer(name, torch.cat(shards), tuple(slots.values()), rank)
            self._slots.update((name, (layer, slot)) for name, slot in slots.items())
            yield layer

    @property
    def is_meta(self) -> bool:
        """Whether a forward pass would meet a tensor without storage.

        It does until the finish, even when every weight has come: modules with buffers alone (the
        rotary embedding, attention) wait for nothing that could complete them earlier.
        """
        return not self._has_buffers or any(layer.weight.is_meta for layer in self.layers)

    @property
    def num_on_meta(self) -> int:
        """Number of layers without storage; none does not mean that the model has all of its own.

        See `is_meta`.
        """
        return sum(layer.weight.is_meta for layer in self.layers)

    @property
    def armed(self) -> list[str]:
        """Names of the layers that wait for weights, in model order."""
        return [layer.name for layer in self.layers if layer.armed]

    def start(self) -> None:
        """Arm every layer that is not armed yet."""
        self._has_buffers = False
        for layer in self.layers:
            layer.arm()

    def finish(self) -> None:
        """Close every layer; commits partly loaded ones with whatever they hold."""
        self.epoch += 1
        for layer in self.layers:
            layer.finalize()
        self._has_buffers = True

    def abort(self) -> None:
        """Put the old parameters of every armed layer back."""
        self.epoch += 1
        for layer in self.layers:
            layer.restore()
        self._has_buffers = True

    def zero(self) -> None:
        """Set every parameter to zero, as ``reset_weights`` does."""
        self.epoch += 1
        for layer in self.layers:
            layer.weight.zero_()

    def begin_load(self) -> LoadCall:
        """Start one call of the model's ``load_weights``."""
        return LoadCall(self)

    def slot_of(self, name: str) -> tuple[Layer, Slot]:
        """Return where the tensor of that Hugging Face name goes.

        Raises:
            ValueError: the model has no such parameter; vLLM's text.
        """
        found = self._slots.get(name)
        if found is None:
            raise ValueError(self._unknown(name))
        return found

    def _unknown(self, name: str) -> str:
        """Return what vLLM's loader says; the inner model has its own, with names of its own."""
        root, params = "LlamaForCausalLM", [layer.param for layer in self.layers]
        inner = "draft" if self.draft else "model"
        if name.startswith(f"{inner}."):
            root, name = CLASSES[inner], name.removeprefix(f"{inner}.")
            params = [p.removeprefix(f"{inner}.") for p in params if p.startswith(f"{inner}.")]
        parts, base = name.split("."), ""
        for depth in range(1, len(parts) + 1):
            prefix = ".".join(parts[:depth])
            if not any(f"{param}.".startswith(f"{prefix}.") for param in params):
                break
            base = prefix
        inside = sorted(param for param in params if not base or param.startswith(f"{base}."))
        return (
            f"There is no module or parameter named {prefix!r} in {root}. "
            f"The available parameters belonging to {base} ({_class_of(base) or root}) "
            f"are: {{{', '.join(map(repr, inside))}}}"
        )

    def checksums(self) -> dict[str, str]:
        """Return parameter -> SHA-256, under vLLM's keys.

        Raises:
            NotImplementedError: a parameter is on the meta device; torch's own text.
        """
        prefix = f"dp0:pp0:pcp0:tp{self._rank}:"
        return {prefix + layer.param: _digest(layer.weight) for layer in self.layers}


class LoadCall:
    """One call of ``load_weights``, for models that look their parameters up once per call.

    The look-up is the hazard: a tensor for a layer that completed earlier in the same call finds
    the stale meta parameter and is dropped; in a later call it finds the live one and is written.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._wrapped: Mapping[str, bool] = {layer.name: layer.wrapped for layer in model.layers}

    def load(self, name: str, tensor: torch.Tensor) -> None:
        """Load one full, unsharded tensor.

        Raises:
            ValueError: the model has no such parameter.
            AssertionError: the shape is not the parameter's.
        """
        layer, slot = self._model.slot_of(name)
        self._model.epoch += 1
        if self._wrapped[layer.name]:
            layer.buffer(slot, tensor)
        else:
            layer.write(slot, tensor)


def _class_of(module: str) -> str:
    last = module.rpartition(".")[2]
    return "LlamaDecoderLayer" if last.isdigit() else CLASSES.get(last, "")


def _digest(weight: torch.Tensor) -> str:
    data = weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(data.data).hexdigest()
