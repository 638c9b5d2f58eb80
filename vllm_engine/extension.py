"""What vLLM's worker can do for the harness: RPCs of ``--worker-extension-cls``.

vLLM makes this class a base of its ``Worker``. The RPCs run in the worker's own thread, like every
other, so the worker is between two of them when they start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import layerwise

from fakes.model_spec import TINY_LLAMA, full_bytes, source_tensors
from vllm_engine.agent import Agent, install
from vllm_engine.backends import reach


class WorkerExtension:
    """RPCs, called through ``POST /collective_rpc`` and by `vllm_engine.server`."""

    rank: int
    device: torch.device
    model_runner: Any
    model_config: Any
    vllm_config: Any
    weight_transfer_engine: Any
    synchronize_device: Callable[[], None]

    def resync_chaos_begin(self, agents_dir: str) -> int:
        """Start this worker's agent in ``agents_dir``; return the worker's pid."""
        path = Path(agents_dir) / f"worker-{self.rank}.sock"
        install(Agent(self, rank=self.rank, path=path, count_armed=count_armed))
        self._visit_pauses()
        return os.getpid()

    def _visit_pauses(self) -> None:
        """Reach ``worker.pause`` where a pause, which has taken effect, waits for the device.

        On the instance, since vLLM's own methods come before an extension's.
        """
        synchronize = self.synchronize_device

        def synchronize_device() -> None:
            reach("worker.pause")
            synchronize()

        self.synchronize_device = synchronize_device

    def resync_chaos_echo(self, token: str) -> str:
        """Return ``token``: an RPC whose reply cannot be taken for an earlier one's."""
        return token

    def resync_chaos_reset(self, *, backend: str, seed: int) -> None:
        """Forget all that earlier scenarios left: channel, session, armed layers, weights.

        Args:
            backend: of the fresh transfer engine, a name in vLLM's factory: ``gloo``,
                ``shared_memory``.
            seed: of the weights, whose step 0 is loaded.

        Raises:
            ValueError: unknown backend; nothing was changed.
        """
        model = self.model_runner.get_model()
        engine = WeightTransferEngineFactory.create_engine(
            replace(self.vllm_config.weight_transfer_config, backend=backend),
            self.vllm_config,
            self.device,
            model,
        )
        if self.weight_transfer_engine is not None:
            self.weight_transfer_engine.shutdown()
        self.weight_transfer_engine = engine
        self._weight_update_active = self._weight_update_is_draft = False
        put_layers_back(model)
        with set_current_vllm_config(self.vllm_config):
            layerwise.initialize_layerwise_reload(model)
            model.load_weights(initial_weights(seed))
            layerwise.finalize_layerwise_reload(model, self.model_config)
        self.model_runner.reset_lora_state()


def initial_weights(seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights that an engine starts with, full tensors under Hugging Face's names."""
    for tensor in source_tensors(shape=TINY_LLAMA):
        data = torch.frombuffer(bytearray(full_bytes(seed, 0, tensor)), dtype=torch.float32)
        yield tensor.name, data.view(tensor.shape)


def count_armed(model: torch.nn.Module) -> int:
    """Return how many layers are between a start and the arrival of all their weights."""
    known = layerwise.LAYERWISE_INFO
    return sum(layer in known and known[layer].can_load() for layer in model.modules())


def put_layers_back(model: torch.nn.Module) -> None:
    """Undo a start: every armed layer gets the parameters back that it had before.

    Not by vLLM's finish, which would load what has arrived, and may raise on it.
    """
    for layer in model.modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load() and info.kernel_tensors is not None:
            layerwise._place_kernel_tensors(layer, info)
        info.reset()
    layerwise.LOADING_LAYERS.clear()
    if hasattr(model, "_original_do_torchao_reload"):
        model._do_torchao_reload = model._original_do_torchao_reload
