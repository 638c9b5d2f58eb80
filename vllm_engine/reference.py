"""The reference model: Hugging Face's Llama with the weights of a known step.

It shares with vLLM the configuration file and the bytes of the weights, and no code.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

from fakes.model_spec import TINY_LLAMA, SourceTensor, full_bytes, source_tensors
from vllm_engine.served import Served
from vllm_engine.tiny_model import write_model

Edit = Callable[[SourceTensor, torch.Tensor], None]  # changes one tensor in place


def load_tensors(seed: int, step: int, edit: Edit | None = None) -> Mapping[str, torch.Tensor]:
    """Return the full tensors of one step by their names, in float32.

    Args:
        edit: called with each tensor before it is returned, to spoil it.
    """
    tensors = {}
    for source in source_tensors(shape=TINY_LLAMA):
        data = bytearray(full_bytes(seed, step, source))
        tensor = torch.frombuffer(data, dtype=torch.float32).view(source.shape)
        if edit is not None:
            edit(source, tensor)
        tensors[source.name] = tensor
    return tensors


class Reference:
    """Serves greedily from the weights of any step; remembers what it served. Thread safe.

    Args:
        seed: of the weights, as `fakes.model_spec.full_bytes` takes it.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._lock = threading.Lock()
        self._served: dict[tuple[int, tuple[int, ...], int], Served] = {}
        self._model = _build_model()
        self._loaded: int | None = None

    def serve(self, step: int, prompt: Sequence[int], num_tokens: int) -> Served:
        """Return ``num_tokens`` greedy tokens after the prompt, from the weights of ``step``.

        Args:
            prompt: token ids, at least two.
            num_tokens: >= 1; prompt and tokens fit into the model's positions.
        """
        key = step, tuple(prompt), num_tokens
        with self._lock:
            if key not in self._served:
                if self._loaded != step:
                    self._load(load_tensors(self.seed, step))
                    self._loaded = step
                self._served[key] = self._greedy(key[1], num_tokens)
            return self._served[key]

    def serve_tensors(
        self, tensors: Mapping[str, torch.Tensor], prompt: Sequence[int], num_tokens: int
    ) -> Served:
        """Return the same from any tensors of the model's shapes; nothing is remembered.

        Raises:
            KeyError: a parameter of the model is missing.
        """
        with self._lock:
            self._loaded = None
            self._load(tensors)
            return self._greedy(tuple(prompt), num_tokens)

    def _load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(tensors[name])

    @torch.inference_mode()
    def _greedy(self, prompt: tuple[int, ...], num_tokens: int) -> Served:
        ids = list(prompt)
        logprobs, margins = [], []
        rows = self._logprobs(ids)
        given = [float(rows[i, token]) for i, token in enumerate(ids[1:])]
        for _ in range(num_tokens):
            best = torch.topk(rows[-1], 2)
            ids.append(int(best.indices[0]))
            logprobs.append(float(best.values[0]))
            margins.append(float(best.values[0] - best.values[1]))
            rows = self._logprobs(ids)
        new = tuple(ids[len(prompt) :])
        return Served(new, tuple(logprobs), tuple(given), tuple(margins))

    def _logprobs(self, ids: Sequence[int]) -> torch.Tensor:
        """Return [len(ids), vocab] log-probabilities; without a cache, which could hide a bug."""
        logits = self._model(torch.tensor([ids]), use_cache=False).logits[0]
        return torch.log_softmax(logits.float(), dim=-1)


def _build_model() -> LlamaForCausalLM:
    """Build the model that vLLM builds from the same file, whatever its weights."""
    with tempfile.TemporaryDirectory() as directory:
        write_model(Path(directory))
        config = LlamaConfig.from_pretrained(directory)
    config._attn_implementation = "eager"
    return LlamaForCausalLM(config).float().eval()
