"""Makes one in-process engine: vLLM's HTTP application over its front end, core and workers."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Any
from unittest import mock

import httpx
import torch
from fastapi import FastAPI
from prometheus_client import REGISTRY
from vllm.config import ParallelConfig, VllmConfig, WeightTransferConfig
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.rl.online import metrics
from vllm.v1.engine.async_llm import AsyncLLM

from fakes import model_spec
from vllm_engine.in_process.core import FrontEnd
from vllm_engine.in_process.groups import standing_in
from vllm_engine.in_process.model import tensors
from vllm_engine.in_process.transfer import Memory
from vllm_engine.in_process.workers import Faults, Worker, build_executor

SEED = 7
URL = "http://engine"  # of no server


class InProcessEngine:
    """vLLM's code for one engine, behind a client, and the trainer's end of its data plane.

    Implements ``conformance.engine.contract.EngineUnderTest``.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        workers: int,
        memory: Memory,
        *,
        draft: bool,
        faults: Faults,
        lose_worker: Callable[[], Awaitable[None]],
    ) -> None:
        self.client, self.workers = client, workers
        self._memory, self._faults, self._lose_worker = memory, faults, lose_worker
        drafts = model_spec.source_tensors(draft=True) if draft else ()
        self.names: Sequence[str] = tuple(source.name for source in model_spec.source_tensors())
        self.draft_names: Sequence[str] = tuple(source.name for source in drafts)
        self.fused: Sequence[str] = tuple(n for n in self.names if ".0.self_attn." in n)[:3]
        self.empty_update = self._update_info([])
        self.refused_update = {**self.empty_update, "names": ["one.too.many"]}

    async def init(self) -> httpx.Response:
        body = {"init_info": {"packed": False}}
        return await self.client.post("/init_weight_transfer_engine", json=body)

    async def update(
        self, step: int, names: Sequence[str] | None = None, *, misshapen: str | None = None
    ) -> httpx.Response:
        known = dict(tensors(SEED, step)) | dict(tensors(SEED, step, draft=True))
        sent = [(name, known.get(name, torch.zeros(1))) for name in names or self.names]
        sent = [(name, t[:3] if name == misshapen else t) for name, t in sent]
        body = {"update_info": self._update_info(sent)}
        return await self.client.post("/update_weights", json=body)

    def checksums(self, step: int) -> Mapping[str, str]:
        return model_spec.expected_checksums(SEED, step, self.workers)

    async def release(self) -> None:
        self._faults.release()

    async def die(self) -> None:
        await self._lose_worker()

    def _update_info(self, sent: Sequence[tuple[str, torch.Tensor]]) -> dict[str, Any]:
        handles = [self._memory.export(tensor) for _, tensor in sent]
        return {
            "names": [name for name, _ in sent],
            "dtype_names": ["float32"] * len(sent),
            "shapes": [list(tensor.shape) for _, tensor in sent],
            "ipc_handles": [
                {f"GPU-{rank}": handle for rank in range(self.workers)} for handle in handles
            ],
        }


@asynccontextmanager
async def make_in_process(
    *,
    workers: int = 1,
    configured: bool = True,
    draft: bool = False,
    failing: Mapping[str, int] | None = None,
    hanging: Mapping[str, int] | None = None,
    cpu_layers: bool = False,
) -> AsyncIterator[InProcessEngine]:
    """Make an engine; see ``conformance.engine.contract.EngineMaker``.

    It offers all but `Need.SERVES` and one of two: with ``cpu_layers`` the layers follow the rules
    of a CPU (`Need.CPU_LAYERS`), where most checksums are of nothing; without, those of a GPU
    (`Need.GPU_LAYERS`, `Need.EXACT`).
    """
    memory, faults = Memory(), Faults(failing or {}, hanging or {})
    with standing_in():
        vllm_config = _vllm_config(workers)
        threads = [
            Worker(
                rank,
                vllm_config=vllm_config,
                seed=SEED,
                draft=draft,
                cpu_layers=cpu_layers,
                memory=memory if configured else None,
                faults=faults,
            )
            for rank in range(workers)
        ]
        front_end = FrontEnd(vllm_config, build_executor(vllm_config, threads))
        try:
            with _app(vllm_config, front_end.llm) as app:
                transport = httpx.ASGITransport(app, raise_app_exceptions=False)
                async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
                    yield InProcessEngine(
                        client,
                        workers,
                        memory,
                        draft=draft,
                        faults=faults,
                        lose_worker=front_end.lose_worker,
                    )
        finally:
            faults.release()
            for thread in threads:
                thread.close()
            await front_end.close()


@cache
def _vllm_config(workers: int) -> Any:
    parallel = ParallelConfig(tensor_parallel_size=workers, distributed_executor_backend="mp")
    transfer = WeightTransferConfig(backend="ipc")
    return VllmConfig(parallel_config=parallel, weight_transfer_config=transfer)


@contextmanager
def _app(vllm_config: Any, llm: AsyncLLM) -> Iterator[FastAPI]:
    """Give vLLM's application, with the routes of ``VLLM_SERVER_DEV_MODE=1``, an engine.

    An application holds nothing of its engine but ``state``, so the next engine may have it.
    """
    _forget_the_gauge()
    with mock.patch.dict(os.environ, VLLM_SERVER_DEV_MODE="1"):
        app: FastAPI = _free_apps.pop() if _free_apps else build_app(_ARGUMENTS, supported_tasks=())
    app.state.engine_client, app.state.vllm_config = llm, vllm_config
    app.state.server = Namespace(should_exit=False)
    yield app
    del app.state.engine_client, app.state.vllm_config, app.state.server
    _free_apps.append(app)


_free_apps: list[FastAPI] = []  # built by vLLM in some 40 ms each
_ARGUMENTS = Namespace(
    disable_fastapi_docs=True,
    enable_offline_docs=False,
    root_path="",
    log_error_stack=False,
    allowed_origins=["*"],
    allow_credentials=False,
    allowed_methods=["*"],
    allowed_headers=["*"],
    api_key=None,
    enable_request_id_headers=False,
    middleware=[],
)


def _forget_the_gauge() -> None:
    """Take the last engine's weight-operation metrics out of the process's registry."""
    last, metrics._metrics = metrics._metrics, None
    if last is not None:
        REGISTRY.unregister(last.duration)
        REGISTRY.unregister(last.in_flight)
