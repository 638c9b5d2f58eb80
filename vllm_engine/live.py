"""Makes engines out of the servers of a pool: what a conformance check is given of real vLLM.

A server is used by one check after another. Between two of them it is reset (`WorkerExtension`), so
an engine is as good as fresh but for what lives in the process: metrics, and with several workers
the replies that nobody has read, for which the pool ends a server. The weights go through shared
memory, which stands in for CUDA IPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import torch

from fakes.data_plane.shared_memory import SharedMemoryExporter
from fakes.model_spec import TINY_LLAMA, expected_checksums, full_bytes, source_tensors
from harness.contracts import Json
from harness.engine_servers import EngineServers
from vllm_engine.agent_client import Agents
from vllm_engine.reference import Reference
from vllm_engine.served import NUM_TOKENS, PROMPT, NotANumberError, ask, matching_step

SEED = 7
BACKEND = "shared_memory"
LIMIT_S = 60.0  # of one request; milliseconds, but a loaded machine is slow
FIRST_VERSION = "default"
POINTS: Mapping[str, str] = {
    "start_weight_update": "worker.start",
    "finish_weight_update": "worker.finish",
}
COMPLETIONS = "/v1/completions"


class LiveEngine:
    """One server behind a client, and the trainer's end of its data plane.

    Implements ``conformance.engine.contract.EngineUnderTest``, but for `release` and `die`.
    """

    draft_names: Sequence[str] = ()

    def __init__(self, client: httpx.AsyncClient, url: str, workers: int, memory: Path) -> None:
        self.client, self.url, self.workers = client, url, workers
        self._exporter = SharedMemoryExporter(memory)
        self._sources = {source.name: source for source in source_tensors(shape=TINY_LLAMA)}
        self.names: Sequence[str] = tuple(self._sources)
        # Not q, k and v: here the first of them is a third.
        self.fused: Sequence[str] = tuple(
            name for name in self.names if name.endswith(("gate_proj.weight", "up_proj.weight"))
        )
        self.empty_update = self._update_info([])
        self.refused_update = {**self.empty_update, "names": ["one.too.many"]}

    async def init(self) -> httpx.Response:
        """Request the init of an unpacked channel; there is no rendezvous."""
        body = {"init_info": {"packed": False}}
        return await self.client.post("/init_weight_transfer_engine", json=body)

    async def update(
        self, step: int, names: Sequence[str] | None = None, *, misshapen: str | None = None
    ) -> httpx.Response:
        """Request one update with these tensors of ``step``; a name nobody knows brings a zero."""
        tensors = [(name, self._tensor(name, step)) for name in names or self.names]
        tensors = [(name, t[:3] if name == misshapen else t) for name, t in tensors]
        body = {"update_info": self._update_info(tensors)}
        return await self.client.post("/update_weights", json=body)

    def checksums(self, step: int) -> Mapping[str, str]:
        """Return the checksums of exactly that step, as if no layer were packed away."""
        return expected_checksums(SEED, step, self.workers, shape=TINY_LLAMA)

    def close(self) -> None:
        """Free the trainer's memory."""
        self._exporter.release_all()

    def _tensor(self, name: str, step: int) -> torch.Tensor:
        source = self._sources.get(name)
        if source is None:
            return torch.zeros(1)
        data = bytearray(full_bytes(SEED, step, source))
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


class LiveEngines:
    """Makes them; implements ``conformance.engine.contract.EngineMaker``.

    Args:
        servers: where servers come from; used from its own event loop.
        directory: existing; receives the trainer's memory and the workers' journal.
    """

    def __init__(self, servers: EngineServers, directory: Path) -> None:
        self._servers, self._directory = servers, directory
        self._warm: set[str] = set()  # URLs of servers that have served

    @asynccontextmanager
    async def __call__(
        self,
        *,
        workers: int = 1,
        configured: bool = True,
        draft: bool = False,
        failing: Mapping[str, int] | None = None,
        hanging: Mapping[str, int] | None = None,
    ) -> AsyncIterator[LiveEngine]:
        """Make an engine; `POINTS` has the RPCs that can be made to fail.

        Raises:
            ValueError: it was asked for what it does not offer.
            EngineServerError: no server became healthy.
        """
        faults = [_raise_once(rpc, worker) for rpc, worker in (failing or {}).items()]
        if not configured or draft or hanging:
            raise ValueError(
                "live engine: expected one with weight transfer, without a draft model and without "
                "a worker that hangs. Run only the rules that need none of these (`rules.not_run`)."
            )
        server = await self._servers.acquire(index=0, workers=workers, doing=lambda what: None)
        try:
            await self._begin(server, faults)
            async with _client(server["url"]) as client:
                await _reset(client)
                if server["url"] not in self._warm:
                    await _warm_up(client)
                    self._warm.add(server["url"])
                engine = LiveEngine(client, server["url"], workers, self._directory)
                try:
                    yield engine
                finally:
                    # Nothing runs on weights that are not there once the next check resumes it.
                    with contextlib.suppress(httpx.HTTPError):
                        await client.post("/abort_requests", json={})
                    engine.close()
        except BaseException:
            await self._servers.discard(server)
            raise
        await self._servers.release(server)

    async def _begin(self, server: Mapping[str, Json], faults: list[dict[str, Json]]) -> None:
        journal = str(self._directory / "journal.jsonl")
        with contextlib.closing(Agents([Path(path) for path in server["agents"]])) as agents:
            await agents.tell(
                {
                    "cmd": "configure",
                    "index": 0,
                    "who": "engine:0",
                    "journal": journal,
                    "faults": faults,
                    "push": 0,
                },
                limit_s=LIMIT_S,
            )


def _raise_once(rpc: str, worker: int) -> dict[str, Json]:
    if rpc not in POINTS:
        raise ValueError(
            f"failing: expected one of {', '.join(sorted(POINTS))}, found {rpc!r}. "
            "Run a rule that lets another RPC fail on in-process engines."
        )
    return {
        "fault": 0,
        "kind": "raise",
        "at": POINTS[rpc],
        "index": 0,
        "push": 0,
        "nth": [1],
        "where": {"worker": worker},
        "options": {},
    }


async def _reset(client: httpx.AsyncClient) -> None:
    """Give a server back the weights, the label and the state that it started with."""
    reset = {"method": "resync_chaos_reset", "kwargs": {"backend": BACKEND, "seed": SEED}}
    for path, body in (
        ("/collective_rpc", reset),
        ("/update_weight_version", {"new_version": FIRST_VERSION}),
        ("/wake_up", None),
        ("/resume", None),
    ):
        answer = await client.post(path, json=body)
        if answer.status_code != 200:
            raise RuntimeError(
                f"reset of a live engine: expected 200 from {path}, found {answer.status_code} "
                f"{answer.text[:400]}. See the server's log."
            )


async def _warm_up(client: httpx.AsyncClient) -> None:
    """Serve two completions at once: the first of a process take as long as a hundred later ones.

    Checks time one completion by another.
    """
    lengths = (100, 4)
    await asyncio.gather(
        *(client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": n}) for n in lengths)
    )


def _client(url: str) -> httpx.AsyncClient:
    # After an error vLLM's server closes the connection without saying so, and an idle one after
    # 5 s, perhaps just as it is used: every request has a connection of its own.
    limits = httpx.Limits(max_keepalive_connections=0)
    transport = _TokenPrompts(httpx.AsyncHTTPTransport(limits=limits))
    return httpx.AsyncClient(base_url=url, timeout=LIMIT_S, transport=transport)


class _TokenPrompts(httpx.AsyncBaseTransport):
    """Sends prompts as token ids: the server has no tokenizer, and checks prompt with text."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path != COMPLETIONS:
            return await self._inner.handle_async_request(request)
        body = json.loads(request.content)
        if isinstance(body.get("prompt"), str):
            body["prompt"] = [byte % TINY_LLAMA.vocab for byte in body["prompt"].encode()]
        data = json.dumps(body).encode()
        headers = {**request.headers, "content-length": str(len(data))}
        sent = httpx.Request(
            request.method,
            request.url,
            headers=headers,
            content=data,
            extensions=request.extensions,
        )
        return await self._inner.handle_async_request(sent)

    async def aclose(self) -> None:
        await self._inner.aclose()


class ServedStep:
    """Names the step whose weights a live engine answers as, by the reference model."""

    def __init__(self) -> None:
        self._reference = Reference(SEED)

    async def __call__(self, engine: LiveEngine, newest: int) -> int | None:
        """Return the step, from ``newest`` down to 0; ``None`` is none of them.

        Raises:
            ServedError: the server did not serve.
        """
        limit = aiohttp.ClientTimeout(total=LIMIT_S)
        async with aiohttp.ClientSession(timeout=limit) as http:
            try:
                answer = await ask(http, engine.url)
            except NotANumberError:
                return None
        if answer is None:
            return None
        return matching_step(
            answer.served,
            range(newest, -1, -1),
            lambda step: self._reference.serve(step, PROMPT, NUM_TOKENS),
        )
