"""Fake engines for the checks: in this process, and as a process over loopback.

Weights reach them over the shared-memory data plane, the one of colocated trainers.
"""

from __future__ import annotations

import multiprocessing
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import torch

from conformance.engine.contract import EngineMaker
from conformance.engine.rules import Need
from fakes import model_spec
from fakes.data_plane.receivers import make_worker_transfer
from fakes.data_plane.shared_memory import SharedMemoryExporter
from fakes.engine import process
from fakes.engine.app import Engine, EngineConfig, build_engine
from harness.channel import SocketChannel
from harness.contracts import Recorder, no_record
from harness.injector import ScenarioInjector

SEED = 7
OFFERS = set(Need) - {Need.CPU_LAYERS}  # the layers of a fake follow the rules of a GPU
TOKEN_INTERVAL_S = 0.001
POINTS = {"start_weight_update": "worker.start", "finish_weight_update": "worker.finish"}


class FakeUnderTest:
    """A fake engine behind a client, and the trainer's end of its data plane.

    ``engine`` and ``released`` are there where the engine is in this process.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        workers: int,
        memory: Path,
        *,
        draft: bool = False,
        engine: Engine | None = None,
        released: threading.Event | None = None,
    ) -> None:
        self.client, self.workers = client, workers
        self._engine, self._released = engine, released
        self._exporter = SharedMemoryExporter(memory)
        target = model_spec.source_tensors()
        drafts = model_spec.source_tensors(draft=True) if draft else ()
        self._sources = {source.name: source for source in (*target, *drafts)}
        self.names: Sequence[str] = tuple(source.name for source in target)
        self.draft_names: Sequence[str] = tuple(source.name for source in drafts)
        self.fused: Sequence[str] = tuple(name for name in self.names if ".0.self_attn." in name)[
            :3
        ]
        self.empty_update = self._update_info([])
        self.refused_update = {**self.empty_update, "names": ["one.too.many"]}

    async def init(self) -> httpx.Response:
        init_info = {"init_info": {"packed": False}}
        return await self.client.post("/init_weight_transfer_engine", json=init_info)

    async def update(
        self, step: int, names: Sequence[str] | None = None, *, misshapen: str | None = None
    ) -> httpx.Response:
        tensors = [(name, self._tensor(name, step)) for name in names or self.names]
        tensors = [(name, t[:3] if name == misshapen else t) for name, t in tensors]
        body = {"update_info": self._update_info(tensors)}
        return await self.client.post("/update_weights", json=body)

    def checksums(self, step: int) -> Mapping[str, str]:
        return model_spec.expected_checksums(SEED, step, self.workers)

    async def release(self) -> None:
        assert self._released is not None
        self._released.set()

    async def die(self) -> None:
        assert self._engine is not None
        self._engine.core._die()

    def close(self) -> None:
        self._exporter.release_all()

    def _tensor(self, name: str, step: int) -> torch.Tensor:
        source = self._sources.get(name)
        if source is None:
            return torch.zeros(1)
        data = bytearray(model_spec.full_bytes(SEED, step, source))
        return torch.frombuffer(data, dtype=torch.float32).view(source.shape)

    def _update_info(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> dict[str, Any]:
        handles = [self._exporter.reduce(tensor).handle for _, tensor in tensors]
        return {
            "names": [name for name, _ in tensors],
            "dtype_names": ["float32"] * len(tensors),
            "shapes": [list(tensor.shape) for _, tensor in tensors],
            "ipc_handles": [
                {f"GPU-{rank}": handle for rank in range(self.workers)} for handle in handles
            ],
        }


def fault(kind: str, at: str, **fields: Any) -> dict[str, Any]:
    """Return one fault as the launcher gives it to engine 0; it strikes the first visit."""
    base = {"fault": 0, "kind": kind, "at": at, "index": 0, "push": 0, "nth": [1]}
    return base | {"where": {}, "options": {}} | fields


def faults_for(failing: Mapping[str, int] | None) -> list[dict[str, Any]]:
    """Return the faults that let the named RPC raise once, each on its worker."""
    return [
        fault("raise", POINTS[rpc], where={"worker": worker})
        for rpc, worker in (failing or {}).items()
        if rpc in POINTS
    ]


def _fail_without_a_point(engine: Engine, failing: Mapping[str, int]) -> None:
    """Let ``reset_lora_state`` raise once: it is no fault point, as no scenario needs it."""
    rank = failing.get("reset_lora_state")
    if rank is None:
        return
    worker = engine.core.executor.workers[rank]

    def reset() -> None:
        del worker.reset_lora_state  # the class's is back
        raise RuntimeError("injected: reset_lora_state")

    worker.reset_lora_state = reset  # type: ignore[method-assign]


def _hang(engine: Engine, hanging: Mapping[str, int], released: threading.Event) -> None:
    """Let the named RPCs hang in their worker, the first time, until they are released."""
    for worker in engine.core.executor.workers:
        waiting = {rpc for rpc, rank in hanging.items() if rank == worker.rank}
        if not waiting:
            continue

        def call(
            method: str,
            args: Any,
            kwargs: Any,
            inner: Any = worker.call,
            hangs: set[str] = waiting,
        ) -> Any:
            if method in hangs:
                hangs.remove(method)
                released.wait()
            return inner(method, args, kwargs)

        worker.call = call  # type: ignore[method-assign]


def build_in_process(
    *,
    workers: int = 1,
    configured: bool = True,
    draft: bool = False,
    profile: str = "vllm-0.32",
    failing: Mapping[str, int] | None = None,
    record: Recorder = no_record,
    on_death: Callable[[], None] = lambda: None,
) -> Engine:
    """Build a fake engine over the shared-memory data plane, without a server."""

    def make_transfer(rank: int) -> Any:
        if not configured:
            return None
        return make_worker_transfer(
            "ipc", rank=rank, world_size=workers, gpu_uuid=f"GPU-{rank}", rendezvous_s=1.0
        )

    return build_engine(
        EngineConfig(
            workers=workers,
            seed=SEED,
            draft=draft,
            backend="ipc" if configured else None,
            profile=profile,
            token_interval_s=TOKEN_INTERVAL_S,
        ),
        make_transfer=make_transfer,
        injector=ScenarioInjector(faults_for(failing), role="engine", index=0, record=record),
        record=record,
        on_death=on_death,
        harness=True,
    )


def in_process(
    spoil: Callable[[Engine], None] = lambda engine: None, *, profile: str = "vllm-0.32"
) -> EngineMaker:
    """Return a maker of fakes in this process; ``spoil`` breaks each, for a canary.

    It offers what `OFFERS` says.
    """

    @asynccontextmanager
    async def make(
        *,
        workers: int = 1,
        configured: bool = True,
        draft: bool = False,
        failing: Mapping[str, int] | None = None,
        hanging: Mapping[str, int] | None = None,
    ) -> AsyncIterator[FakeUnderTest]:
        engine = build_in_process(
            workers=workers, configured=configured, draft=draft, profile=profile, failing=failing
        )
        released = threading.Event()
        _fail_without_a_point(engine, failing or {})
        spoil(engine)
        _hang(engine, hanging or {}, released)  # around what a canary did to the calls
        transport = httpx.ASGITransport(engine.gate, raise_app_exceptions=False)
        with tempfile.TemporaryDirectory() as memory:
            async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
                under_test = FakeUnderTest(
                    client, workers, Path(memory), draft=draft, engine=engine, released=released
                )
                try:
                    yield under_test
                finally:
                    released.set()
                    under_test.close()

    return make


@asynccontextmanager
async def as_process(
    *,
    workers: int = 1,
    configured: bool = True,
    draft: bool = False,
    failing: Mapping[str, int] | None = None,
    hanging: Mapping[str, int] | None = None,
) -> AsyncIterator[FakeUnderTest]:
    """Make a fake as the launcher starts it: its own process, on a listener that we bound.

    It offers all but `Need.HANGS` and `Need.DIES`.
    """
    assert not hanging, "expected no check that needs HANGS"
    faults = faults_for(failing)
    with tempfile.TemporaryDirectory() as memory:
        backend = "ipc" if configured else None
        config = {"workers": workers, "backend": backend, "draft": draft, "faults": faults}
        with running_process(Path(memory), **config) as (url, _, _):
            async with httpx.AsyncClient(base_url=url, timeout=10) as client:
                under_test = FakeUnderTest(client, workers, Path(memory), draft=draft)
                yield under_test
                under_test.close()


@contextmanager
def running_process(
    directory: Path, **overrides: Any
) -> Iterator[tuple[str, SocketChannel, multiprocessing.process.BaseProcess]]:
    """Start an engine process; yield its URL, its channel and the process."""
    config = {
        "index": 0,
        "workers": 1,
        "gpu_offset": 0,
        "seed": SEED,
        "draft": False,
        "backend": "ipc",
        "profile": "vllm-0.32",
        "rendezvous_s": 1.0,
        "journal": str(directory / "journal.jsonl"),
        "faults": [],
        "token_interval_s": TOKEN_INTERVAL_S,
    } | overrides
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fakes.engine.process"])
    ours, theirs = socket.socketpair()
    with ours, socket.create_server(("127.0.0.1", 0)) as listener:
        child = context.Process(target=_serve, args=(config, theirs, listener))
        child.start()
        theirs.close()
        channel = SocketChannel(ours)
        assert channel.receive() == {"ready": True}
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", channel, child
        finally:
            with suppress(OSError):  # closed by the test
                ours.shutdown(socket.SHUT_RDWR)
            child.join(5)
            if child.is_alive():
                child.kill()
            child.close()


def _serve(config: dict[str, Any], channel: socket.socket, listener: socket.socket) -> None:
    process.main(config, SocketChannel(channel), [listener])
