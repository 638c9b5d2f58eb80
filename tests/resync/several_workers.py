"""One fake engine of several workers in this process, with vLLM's executor rules, and its control.

The executor, the workers' session flags and their layers are those that the conformance suite
compares with vLLM. Only the tensors are left out: an update brings none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from httpx_wire import HttpxWire

from fakes.engine.app import Engine, EngineConfig, build_engine
from harness.contracts import no_record
from harness.injector import ScenarioInjector
from resync import EngineControl, PushTimeouts

LIMITS = PushTimeouts(init_s=5, request_s=5, settle_s=5)
UPDATE: dict[str, Any] = {"names": ["a.weight"]}


def failing(at: str, *workers: int, nth: Sequence[int] = (1,)) -> list[dict[str, Any]]:
    """Return faults that make these workers raise at a fault point; all workers where none is
    named."""
    return [
        {
            "fault": number,
            "kind": "raise",
            "at": at,
            "index": 0,
            "push": 0,
            "nth": list(nth),
            "where": {} if worker is None else {"worker": worker},
            "options": {"message": f"worker {worker} fails"},
        }
        for number, worker in enumerate(workers or (None,))
    ]


class Several:
    """One engine of several workers.

    Attributes:
        control: what is tested; it knows the number of workers, and nothing else yet.
        asked: the paths of all requests, in order.
    """

    def __init__(self, engine: Engine, control: EngineControl, client: httpx.AsyncClient) -> None:
        self.engine, self.control, self.client = engine, control, client
        self.asked: list[str] = []

    async def backlog(self) -> tuple[int, ...]:
        """Return what the engine really has, once every worker has done what it was asked."""
        await self.engine.core.executor.drain()
        return tuple(thread.backlog for thread in self.engine.core.executor.threads)

    @property
    def open(self) -> list[bool]:
        """Which workers are in a session."""
        return [worker.active for worker in self.engine.core.executor.workers]

    @property
    def on_meta(self) -> bool:
        """Whether some layer still waits for weights."""
        return self.engine.core.weights.on_meta

    async def post(self, path: str, body: Any = None) -> int:
        """Send a request of somebody else's; returns its status."""
        return (await self.client.post(path, json=body)).status_code


@asynccontextmanager
async def several_workers(
    workers: int,
    faults: Sequence[dict[str, Any]] = (),
    *,
    profile: str = "vllm-0.32",
    timeouts: PushTimeouts = LIMITS,
) -> AsyncIterator[Several]:
    """Make an engine that is paused and initialised, and its control."""

    engine = build_engine(
        EngineConfig(workers=workers, backend="ipc", profile=profile),
        make_transfer=lambda rank: NoTensors(),
        injector=ScenarioInjector(list(faults), role="engine", index=0, record=no_record),
        record=no_record,
        on_death=lambda: None,
    )
    asgi = httpx.ASGITransport(engine.gate, raise_app_exceptions=False)
    asked: list[str] = []

    class Counting(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            asked.append(request.url.path)
            return await asgi.handle_async_request(request)

    async with (
        HttpxWire(Counting()) as wire,
        httpx.AsyncClient(transport=asgi, base_url="http://engine") as client,
    ):
        control = EngineControl(index=0, url="http://engine", wire=wire, timeouts=timeouts)
        await client.post("/pause?mode=keep")
        await client.post("/init_weight_transfer_engine", json={"init_info": {"packed": False}})
        control.replies.num_workers = workers
        several = Several(engine, control, client)
        several.asked = asked
        yield several
    for thread in engine.core.executor.threads:
        thread.leave()


class NoTensors:
    """A worker's end of a data plane over which nothing comes."""

    def init(self, init_info: Mapping[str, Any]) -> None:
        """Join a channel."""

    def shutdown(self) -> None:
        """Leave it."""

    def receive(self, update_info: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield nothing."""
        return iter(())

    def finish(self) -> None:
        """The session ends."""

    def pending(self) -> list[dict[str, Any]]:
        """Return what it waits in: nothing."""
        return []
