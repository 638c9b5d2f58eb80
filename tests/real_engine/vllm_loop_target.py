"""Our module as a target that insists on vLLM's own trainer engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vllm.distributed.weight_transfer import TrainerWeightTransferEngine

from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_resync


def build(context: TargetContext) -> ResyncTarget:
    """Return the default target; opening a channel raises where its engine is not vLLM's."""

    def open_channel(client: Any, source: Any) -> Any:
        trainer = context.open_channel(client, source)
        if not isinstance(trainer, TrainerWeightTransferEngine):
            raise TypeError(f"expected a trainer engine of vLLM's, found {type(trainer)}.")
        return trainer

    return build_resync(replace(context, open_channel=open_channel))
