"""The ``vllm.general_plugins`` entry point: what vLLM calls in each of its processes.

It is installed with the project, so it is called in every vLLM server of that environment, the
production ones too. There it does nothing at all: no import, no registration.
"""

from __future__ import annotations

import os

ENABLED_BY = "RESYNC_CHAOS_ENGINE"  # set by `vllm_engine.server` alone
BACKENDS = {
    "gloo": ("vllm_engine.backends.gloo", "GlooWeightTransferEngine"),
    "shared_memory": ("vllm_engine.backends.shared_memory", "SharedMemoryWeightTransferEngine"),
    "cuda_nccl": ("vllm_engine.backends.cuda", "CudaNcclWeightTransferEngine"),
    "cuda_ipc": ("vllm_engine.backends.cuda", "CudaIpcWeightTransferEngine"),
}


def register() -> None:
    """Register the transfer backends of the harness with vLLM, once per process.

    vLLM calls it in the API server, in the engine core and in every worker, and with forked
    processes more than once in some; registering a backend twice is an error there.
    """
    if not os.environ.get(ENABLED_BY):
        return
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    for name, (module, cls) in BACKENDS.items():
        if name not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(name, module, cls)
