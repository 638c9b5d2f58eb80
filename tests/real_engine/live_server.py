"""One real server, as tests drive it: requests, pushes, its workers' agents and what it serves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import torch

from fakes.model_spec import TINY_LLAMA, full_bytes, source_tensors
from fakes.send_loops import ChannelSettings, open_channel
from harness.contracts import Json, NoFaults, no_record
from harness.journal import read_journal
from vllm_engine.agent_client import Agents
from vllm_engine.reference import Reference
from vllm_engine.served import NUM_TOKENS, PROMPT, Answer, ask, matching_step

SEED = 11
LIMIT_S = 60.0
BACKENDS = {"nccl": "gloo", "ipc": "shared_memory"}
STEPS = range(4)  # that a test may push


class Refused(Exception):
    """The server answered a request of a push with another status than 200."""


class Source:
    """The weights of one step, as a trainer of one rank sends them."""

    draft = False

    def __init__(self, step: int) -> None:
        self._tensors = dict(tensors(SEED, step))

    def metadata(self) -> Sequence[Any]:
        return [
            SimpleNamespace(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape))
            for name, tensor in self._tensors.items()
        ]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._tensors.items())


@cache
def _reference() -> Reference:
    return Reference(SEED)


def tensors(seed: int, step: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the full tensors of one step."""
    for source in source_tensors(shape=TINY_LLAMA):
        data = bytearray(full_bytes(seed, step, source))
        yield source.name, torch.frombuffer(data, dtype=torch.float32).view(source.shape)


class LiveServer:
    """A client of one server, with the four methods that a trainer engine calls.

    Args:
        server: what `vllm_engine.pool.ServerPool.acquire` returned.
        runner: the loop that pool and agents live on.
        directory: for journals, and for shared memory.
    """

    def __init__(self, server: dict[str, Json], runner: asyncio.Runner, directory: Path) -> None:
        self.server = server
        self.url: str = server["url"]
        self.pids: dict[str, Any] = server["pids"]
        self.workers = len(server["agents"])
        self.journal = directory / "journal.jsonl"
        # A connection that idles is closed by the server after 5 s, perhaps just as it is used.
        once = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=self.url, timeout=LIMIT_S, limits=once)
        self._runner = runner
        self._directory = directory
        self._agents = Agents([Path(path) for path in server["agents"]])

    def close(self) -> None:
        self.http.close()
        self._agents.close()

    # ---- requests ----

    def post(self, route: str, body: Json = None) -> tuple[int, str]:
        """Return status and text of one answer; the text is the error's message, if it is one."""
        answer = self.http.post(route, json=body)
        error = answer.json().get("error")
        return answer.status_code, error["message"] if isinstance(error, dict) else answer.text

    def rpc(self, method: str, **kwargs: Json) -> tuple[int, str]:
        return self.post("/collective_rpc", {"method": method, "kwargs": kwargs})

    def reset(self, transport: str = "nccl", seed: int = SEED) -> None:
        """Give it the weights of step 0, and let it serve."""
        status, text = self.rpc("resync_chaos_reset", backend=BACKENDS[transport], seed=seed)
        assert status == 200, text
        assert self.post("/resume")[0] == 200

    def served(self) -> Answer:
        """Return what it serves now."""

        async def once() -> Answer | None:
            limit = aiohttp.ClientTimeout(total=LIMIT_S)
            async with aiohttp.ClientSession(timeout=limit) as http:
                return await ask(http, self.url)

        answer = self._runner.run(once())
        assert answer is not None
        return answer

    def step(self) -> int | None:
        """Return the step whose weights it serves from, by the reference model; else ``None``."""
        return matching_step(
            self.served().served,
            STEPS,
            lambda step: _reference().serve(step, PROMPT, NUM_TOKENS),
        )

    # ---- agents ----

    def tell(self, cmd: str, **fields: Json) -> None:
        """Have every agent do the same."""
        self._runner.run(self._agents.tell({"cmd": cmd} | fields, limit_s=LIMIT_S))

    def configure(self, *faults: dict[str, Json], **fields: Json) -> None:
        """Begin a scenario with these faults, in an empty journal."""
        self.journal.unlink(missing_ok=True)
        config = {"index": 0, "who": "engine:0", "journal": str(self.journal), "push": 0}
        self.tell("configure", faults=list(faults), **{"rendezvous_s": LIMIT_S} | config | fields)

    def states(self) -> list[dict[str, Any]]:
        """Return what each agent says of its worker."""
        states = self._runner.run(self._agents.states(limit_s=LIMIT_S))
        assert None not in states
        return [state for state in states if state is not None]

    def struck(self) -> list[tuple[str, int, str | None]]:
        """Return the faults that struck: point, worker, tensor."""
        events = [event for event in read_journal(self.journal) if event["event"] == "fault"]
        assert {event["who"] for event in events} <= {"engine:0"}
        return [(e["at"], e["where"]["worker"], e["where"].get("tensor")) for e in events]

    # ---- pushes ----

    def push(self, step: int, transport: str, *, packed: bool) -> None:
        """Open a channel and send the weights of a step.

        Raises:
            Refused: with the error's text.
        """
        settings = ChannelSettings(
            transport=transport,
            packed=packed,
            rank=0,
            total_workers=self.workers,
            rendezvous_s=LIMIT_S,
            scratch_dir=self._directory,
            injector=NoFaults(),
            record=no_record,
            buffer_bytes=72 * 1024,  # several chunks, of several tensors each
        )
        channel = open_channel(settings, self, Source(step))
        try:
            channel.send_weights()
        finally:
            channel.shutdown()

    def init_weight_transfer_engine(self, init_info: dict[str, Json]) -> None:
        self._demand("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._demand("/start_weight_update")

    def update_weights(self, update_info: dict[str, Json]) -> None:
        self._demand("/update_weights", {"update_info": update_info})

    def finish_weight_update(self) -> None:
        self._demand("/finish_weight_update")

    def _demand(self, route: str, body: Json = None) -> None:
        status, text = self.post(route, body)
        if status != 200:
            raise Refused(text)


def fault(kind: str, at: str, **fields: Any) -> dict[str, Json]:
    """Return one fault as `harness.scenario.Scenario.faults_for` gives it to engine 0."""
    base = {"fault": 0, "kind": kind, "at": at, "index": 0, "push": 0, "nth": [1]}
    return json.loads(json.dumps(base | {"where": {}, "options": {}} | fields))
