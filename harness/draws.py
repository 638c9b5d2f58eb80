"""Decides what a scenario leaves to chance, from its seed alone, when its file is loaded.

The same file always gives the same run; another ``seed`` gives another one, so that a matrix over
``seed`` tries several.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from harness.contracts import Json
from harness.fault_spec import FaultSpec
from harness.scenario_values import RANDOM

_ATTENTION = (
    "input_layernorm",
    *(f"self_attn.{letter}_proj" for letter in "qkvo"),
    "post_attention_layernorm",
)
_MLP = ("gate_proj", "up_proj", "down_proj")


def tensors(session: str, *, num_experts: int = 0) -> tuple[str, ...]:
    """Return the names of what one pass of a session sends, whatever the kind of the engines.

    Args:
        session: ``target`` or ``draft``.
        num_experts: of a mixture of experts; 0 for a dense model.
    """
    mlp = [f"mlp.{name}" for name in _MLP]
    if num_experts:
        experts = (f"mlp.experts.{n}.{name}" for n in range(num_experts) for name in _MLP)
        mlp = ["mlp.gate", *experts]
    prefix = "model" if session == "target" else "draft"
    layer = [f"{prefix}.layers.0.{name}.weight" for name in (*_ATTENTION, *mlp)]
    if session == "draft":
        return (*layer, "draft.norm.weight")
    return ("model.embed_tokens.weight", *layer, "model.norm.weight", "lm_head.weight")


def draw(
    fault: FaultSpec,
    *,
    number: int,
    seed: int,
    ranks: int,
    engines: int,
    workers: int,
    num_experts: int = 0,
) -> tuple[FaultSpec, Mapping[str, Json]]:
    """Return a fault with every ``random`` decided, and what was decided by key.

    Args:
        number: of the fault in its scenario; two faults draw apart from each other.
        seed: the scenario's.
        ranks, engines, workers: how many there are to choose from.
        num_experts: of the model, for its tensors.
    """
    choices: Mapping[str, Sequence[Json]] = {
        "engine": range(engines),
        "rank": range(ranks),
        "worker": range(workers),
        "tensor": tensors(fault.session or "target", num_experts=num_experts),
    }
    drawn = {
        key: random.Random(f"{seed}:faults.{number}.{key}").choice(choice)
        for key, choice in choices.items()
        if getattr(fault, key) == RANDOM
    }
    return fault.model_copy(update=drawn) if drawn else fault, drawn
