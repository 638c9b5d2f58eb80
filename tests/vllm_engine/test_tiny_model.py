"""The model directory that real engines are started on."""

from __future__ import annotations

import json
from pathlib import Path

from fakes.model_spec import TINY_LLAMA, source_tensors
from vllm_engine.tiny_model import MAX_TOKENS, write_model


def _shapes(config: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Return what a Llama of this configuration is made of, by Hugging Face's names."""
    hidden, inner, vocab = (
        config["hidden_size"],
        config["intermediate_size"],
        config["vocab_size"],
    )
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes |= {
            f"{at}input_layernorm.weight": (hidden,),
            f"{at}self_attn.q_proj.weight": (queries, hidden),
            f"{at}self_attn.k_proj.weight": (keys, hidden),
            f"{at}self_attn.v_proj.weight": (keys, hidden),
            f"{at}self_attn.o_proj.weight": (hidden, queries),
            f"{at}post_attention_layernorm.weight": (hidden,),
            f"{at}mlp.gate_proj.weight": (inner, hidden),
            f"{at}mlp.up_proj.weight": (inner, hidden),
            f"{at}mlp.down_proj.weight": (hidden, inner),
        }
    return shapes


def test_the_configuration_is_that_of_the_weights(tmp_path: Path) -> None:
    """What the file describes has exactly the tensors that a trainer sends."""
    write_model(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    sent = {tensor.name: tensor.shape for tensor in source_tensors(shape=TINY_LLAMA)}
    assert _shapes(config) == sent
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert not config["tie_word_embeddings"]
    assert config["max_position_embeddings"] == MAX_TOKENS


def test_no_token_ends_a_completion(tmp_path: Path) -> None:
    """A completion is as long as the request asks, whatever the weights."""
    write_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert [config[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [None] * 3


def test_writing_again_changes_nothing(tmp_path: Path) -> None:
    """A directory may be written twice, and holds one small file."""
    write_model(tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    write_model(tmp_path)
    assert (tmp_path / "config.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
