"""A tiny model of vLLM's own layers, under the names that a Llama has in vLLM.

The layers, their sharding, their weight loaders and ``AutoWeightsLoader`` are vLLM's. A model
follows one of two sets of rules:

* those of a GPU, and of the 40 model files of vLLM that look their parameters up once per call of
  ``load_weights`` (``deepseek_v2``, ``gpt_oss``, ``llama4``, ...). That look-up, which tears a
  fused layer (facts 6.1), is written out here; a name that it does not know goes to vLLM's loader,
  for its text. The layers have no ``quant_method`` once they are built: on a GPU it does nothing
  after loading unquantised weights;
* those of a Llama on a CPU (``cpu_layers``): vLLM's loader with Llama's mapping of names, and
  linear weights that are packed away after each loading (facts 6.5).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.models import llama
from vllm.model_executor.models.utils import AutoWeightsLoader

from fakes import model_spec
from fakes.model_spec import TINY

FUSED = (
    # parameter,     checkpoint's,  shard
    (".qkv_proj", ".q_proj", "q"),
    (".qkv_proj", ".k_proj", "k"),
    (".qkv_proj", ".v_proj", "v"),
    (".gate_up_proj", ".gate_proj", 0),
    (".gate_up_proj", ".up_proj", 1),
)


class LlamaAttention(nn.Module):
    """The projections of one attention layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(
            TINY.hidden, TINY.head_dim, TINY.heads_q, TINY.heads_kv, bias=False
        )
        self.o_proj = RowParallelLinear(TINY.heads_q * TINY.head_dim, TINY.hidden, bias=False)


class LlamaMLP(nn.Module):
    """The projections of one feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [TINY.intermediate] * 2
        self.gate_up_proj = MergedColumnParallelLinear(TINY.hidden, sizes, bias=False)
        self.down_proj = RowParallelLinear(TINY.intermediate, TINY.hidden, bias=False)


class LlamaDecoderLayer(nn.Module):
    """One decoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(TINY.hidden)
        self.self_attn = LlamaAttention()
        self.post_attention_layernorm = RMSNorm(TINY.hidden)
        self.mlp = LlamaMLP()


class LlamaModel(nn.Module):
    """Everything below the head; a draft model has no vocabulary of its own."""

    def __init__(self, *, draft: bool) -> None:
        super().__init__()
        if not draft:
            self.embed_tokens = VocabParallelEmbedding(TINY.vocab, TINY.hidden)
        num_layers = TINY.num_draft_layers if draft else TINY.num_layers
        self.layers = nn.ModuleList(LlamaDecoderLayer() for _ in range(num_layers))
        self.norm = RMSNorm(TINY.hidden)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load as vLLM's ``LlamaModel`` does."""
        mapper = llama.LlamaModel.hf_to_vllm_mapper
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights, mapper=mapper)
        return loaded


class LlamaForCausalLM(nn.Module):
    """The whole model, as one tensor-parallel worker holds it."""

    def __init__(self, *, draft: bool, cpu_layers: bool) -> None:
        super().__init__()
        self.looks_up = not cpu_layers
        body = LlamaModel(draft=draft)
        if draft:
            self.draft = body
        else:
            self.model = body
            self.lm_head = ParallelLMHead(TINY.vocab, TINY.hidden)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load full tensors under the checkpoint's names; return the parameters' names."""
        loaded: set[str] = set()
        if not self.looks_up:
            return loaded.union(AutoWeightsLoader(self).load_weights(weights))
        params = dict(self.named_parameters())
        for name, weight in weights:
            param_name, shard = _param_of(name)
            param = params.get(param_name)
            if param is None:
                loaded |= AutoWeightsLoader(self).load_weights([(name, weight)])
                continue
            load = getattr(param, "weight_loader", default_weight_loader)
            load(param, weight, *shard)
            loaded.add(param_name)
        return loaded


def _param_of(name: str) -> tuple[str, tuple[str | int, ...]]:
    for param, source, shard in FUSED:
        if source in name:
            return name.replace(source, param), (shard,)
    return name, ()


def build_model(seed: int, *, draft: bool = False, cpu_layers: bool = False) -> LlamaForCausalLM:
    """Return the model with the weights of step 0, ready to be reloaded.

    Call it in the thread of the worker, inside `groups.as_worker` and ``set_current_vllm_config``.
    """
    model = LlamaForCausalLM(draft=draft, cpu_layers=cpu_layers)
    record_metadata_for_reloading(model)  # where vLLM's loader does it: before the first load
    model.load_weights(tensors(seed, 0, draft=draft))
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if method is not None and cpu_layers:
            method.process_weights_after_loading(module)
        elif method is not None:
            setattr(module, "quant_method", None)  # noqa: B010, mypy takes it for a tensor
    return model


def tensors(seed: int, step: int, *, draft: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what a push of ``step`` sends: the full tensors, under their Hugging Face names."""
    for source in model_spec.source_tensors(draft=draft):
        data = bytearray(model_spec.full_bytes(seed, step, source))
        yield source.name, torch.frombuffer(data, dtype=torch.float32).view(source.shape)
