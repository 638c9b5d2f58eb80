"""Writes the model that real engines serve: a Llama of `fakes.model_spec.TINY_LLAMA`'s extents.

There are no weights in it. vLLM starts with random ones, and the worker extension replaces them by
those of step 0 before the server counts as ready (`vllm_engine.extension`).
"""

from __future__ import annotations

import json
from pathlib import Path

from fakes.model_spec import TINY_LLAMA, ModelShape

MAX_TOKENS = 256  # of a prompt and its completion together


def write_model(directory: Path) -> None:
    """Write what vLLM and Hugging Face's ``AutoConfig`` read of a model, without its weights.

    Args:
        directory: made if it does not exist; its ``config.json`` is overwritten.

    Raises:
        OSError: the directory cannot be written to.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(_config(TINY_LLAMA), indent=1) + "\n")


def _config(shape: ModelShape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads_q,
        "num_key_value_heads": shape.heads_kv,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.num_layers,
        "vocab_size": shape.vocab,
        "max_position_embeddings": MAX_TOKENS,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "dtype": "float32",
        # No token ends a completion, so that its length depends on the request alone.
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
