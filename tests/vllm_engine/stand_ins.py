"""A real engine's server, without vLLM: a fake engine with what the gateway needs on top.

It is a process, with two more that stand for the core and the workers. It answers vLLM's
token-in-token-out route from the fake's weights: log-probabilities that are a function of their
fingerprint. Its agents and its reset speak the protocol of those in vLLM's workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fake_engines import SEED

from fakes.data_plane.receivers import make_worker_transfer
from fakes.engine.app import Engine, EngineConfig, build_engine
from fakes.engine.gate import GateExchange, Receive, Scope, Send, signal_self
from fakes.engine.generation import Completion, ServedWeights
from fakes.engine.layers import Model
from fakes.model_spec import expected_checksums, fingerprint
from harness.channel import SocketChannel
from harness.contracts import NoFaults
from vllm_engine import gateway
from vllm_engine.served import NUM_TOKENS, PROMPT, Served

VOCABULARY = 128
LIMIT_S = 10.0
SLEEPER = [sys.executable, "-c", "import signal; signal.pause()"]
_forkserver = multiprocessing.get_context("forkserver")
_forkserver.set_forkserver_preload(["fakes.engine.process", "vllm_engine.gateway"])


def served_from(weights: str, num_tokens: int = NUM_TOKENS) -> Served:
    """Return what weights of that fingerprint serve here."""
    chance = random.Random(weights)
    prompt = tuple(-5 * chance.random() for _ in PROMPT[1:])
    tokens = tuple(chance.randrange(VOCABULARY) for _ in range(NUM_TOKENS))
    logprobs = tuple(-chance.random() for _ in tokens)
    return Served(tokens[:num_tokens], logprobs[:num_tokens], prompt, (1.0,) * num_tokens)


def expected_one(step: int) -> Served:
    """Return what step ``step`` serves on an engine with one worker."""
    return served_from(fingerprint(expected_checksums(SEED, step, 1)))


def expected_two(step: int) -> Served:
    """Return what step ``step`` serves on an engine with two workers."""
    return served_from(fingerprint(expected_checksums(SEED, step, 2)))


class StandIn:
    """The server: the fake's routes, vLLM's own that it lacks, and the agents' sockets."""

    def __init__(self, directory: Path, *, workers: int, backend: str) -> None:
        self.directory, self.workers = directory, workers
        self.told: list[tuple[int, Mapping[str, Any]]] = []  # what each agent was told
        self.mute = False  # agents that do not answer
        self.stubborn = False  # a reset that says it was done, and was not
        self.configured = [False] * workers
        self._steps: dict[str, list[dict[str, Any]]] = {}  # request -> its tokens
        self.engine = self._build(backend)

    def _build(self, backend: str) -> Engine:
        return build_engine(
            EngineConfig(workers=self.workers, seed=SEED, backend=backend, token_interval_s=0.001),
            make_transfer=lambda rank: make_worker_transfer(
                backend,
                rank=rank,
                world_size=self.workers,
                gpu_uuid=f"GPU-{rank}",
                rendezvous_s=4.0,
            ),
            injector=NoFaults(),
            record=self._record,
            on_death=lambda: None,
        )

    def _record(self, event: str, /, **fields: Any) -> None:
        if event == "token":
            self._steps.setdefault(fields["request"], []).append(fields)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = GateExchange(self.engine.gate, scope, receive, send, signal_self)
        match scope["path"]:
            case "/inference/v1/generate":
                asked = await exchange.read_json()
                await exchange.respond(200, await self._generate(asked, receive))
            case "/stand_in/told":
                await exchange.respond(200, self.told)
            case "/stand_in/mute":
                self.mute = True
                await exchange.respond(200, {})
            case "/stand_in/stubborn":
                self.stubborn = True
                await exchange.respond(200, {})
            case "/collective_rpc":
                asked = await exchange.read_json()
                if asked["method"] != "resync_chaos_reset":
                    await exchange.forward()
                    return
                self.told.append((-1, asked))
                if not self.stubborn:
                    self._reset()
                await exchange.respond(200, {"results": [None] * self.workers})
            case _:
                await exchange.forward()

    async def _generate(self, asked: Mapping[str, Any], receive: Receive) -> Mapping[str, Any]:
        name = asked["cache_salt"]
        num_tokens = asked["sampling_params"]["max_tokens"]
        done = asyncio.get_running_loop().create_future()
        completion = Completion(name, "", num_tokens, done)
        generating = asyncio.create_task(self.engine.core.generate(completion))
        leaving = asyncio.create_task(receive())  # the body has been read: only the end comes
        await asyncio.wait((generating, leaving), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if not generating.done():
            generating.cancel()
            await self.engine.core.abort([name])
            return {}
        steps = self._steps.pop(name, [])
        if not steps:
            return {"choices": [{"finish_reason": "abort", "token_ids": []}]}
        served = served_from(steps[0]["fingerprint"], num_tokens)
        rows = zip(PROMPT[1:], served.prompt_logprobs, strict=True)
        return {
            "prompt_logprobs": [None, *({str(t): {"logprob": p}} for t, p in rows)],
            "choices": [
                {
                    "finish_reason": "length",
                    "token_ids": served.tokens,
                    "logprobs": {"content": [{"logprob": p} for p in served.logprobs]},
                    "weight_versions": [{"version": steps[-1]["version"]}],
                }
            ],
        }

    def _reset(self) -> None:
        core = self.engine.core
        for worker in core.executor.workers:
            worker.model = worker._target = Model(
                seed=SEED, world_size=self.workers, rank=worker.rank
            )
            worker.active = worker.is_draft = worker.initialized = False
        core.weights = ServedWeights(core.executor.workers)

    # ---- the agents ----

    def serve_agents(self) -> None:
        """Answer on every worker's socket, in threads, as the real agents do."""
        for rank in range(self.workers):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(self.directory / f"worker-{rank}.sock"))
            listener.listen()
            threading.Thread(target=self._accept, args=(listener, rank), daemon=True).start()

    def _accept(self, listener: socket.socket, rank: int) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self._answer, args=(connection, rank), daemon=True).start()

    def _answer(self, connection: socket.socket, rank: int) -> None:
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                asked = json.loads(line)
                if asked["cmd"] != "state":
                    self.told.append((rank, asked))
                    self.configured[rank] = asked["cmd"] == "configure"
                    answer: Mapping[str, Any] = {"ok": True}
                else:
                    answer = self._state(rank)
                if not self.mute:
                    connection.sendall(json.dumps(answer).encode() + b"\n")

    def _state(self, rank: int) -> Mapping[str, Any]:
        thread = self.engine.core.executor.threads[rank]
        worker = thread.worker
        return {
            "pid": os.getpid(),
            "rank": rank,
            "active": worker.active,
            "is_draft": worker.is_draft,
            "busy": thread.busy,
            "armed": sum(len(model.armed) for model in worker.models),
            "on_meta": sum(model.is_meta for model in worker.models),
            "initialised": worker.initialized,
            "configured": self.configured[rank],
        }


def _serve_stand_in(
    directory: Path, workers: int, backend: str, channel: socket.socket, listener: socket.socket
) -> None:
    os.setpgid(0, 0)
    stand_in = StandIn(directory, workers=workers, backend=backend)
    stand_in.serve_agents()
    core = subprocess.Popen(SLEEPER)
    helpers = [subprocess.Popen(SLEEPER) for _ in range(workers)]
    pids = {"server": os.getpid(), "core": core.pid, "workers": [h.pid for h in helpers]}
    SocketChannel(channel).send(pids)
    settings = uvicorn.Config(stand_in, lifespan="off", log_config=None)
    uvicorn.Server(settings).run(sockets=[listener])


def _serve_gateway(
    config: dict[str, Any], two: bool, channel: socket.socket, listener: socket.socket
) -> None:
    os.setpgid(0, 0)
    expected = expected_two if two else expected_one
    gateway.serve(config, SocketChannel(channel), [listener], expected)


class Upstream:
    """A running stand-in server, as the pool hands it to a gateway."""

    def __init__(self, url: str, directory: Path, pids: Mapping[str, Any], process: Any) -> None:
        self.url, self.pids, self.process = url, pids, process
        agents = [str(directory / f"worker-{rank}.sock") for rank in range(len(pids["workers"]))]
        self.server = {"url": url, "agents": agents, "pids": pids}

    def told(self) -> list[Any]:
        """Return what the agents were told, and the resets (rank -1), in order."""
        told: list[Any] = httpx.get(f"{self.url}/stand_in/told").json()
        return told


@contextlib.contextmanager
def running_upstream(
    directory: Path, *, workers: int = 1, backend: str = "ipc"
) -> Iterator[Upstream]:
    """Start a stand-in server; end it and its helpers afterwards, whatever state they are in."""
    ours, theirs = socket.socketpair()
    with ours, socket.create_server(("127.0.0.1", 0)) as listener:
        process = _forkserver.Process(
            target=_serve_stand_in, args=(directory, workers, backend, theirs, listener)
        )
        process.start()
        theirs.close()
        pids = SocketChannel(ours).receive()
        assert pids is not None
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.close()  # a server that has died must not be listened for by its test
        try:
            yield Upstream(url, directory, pids, process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pids["server"], signal.SIGKILL)
            process.join(LIMIT_S)


class Running:
    """A running gateway."""

    def __init__(self, url: str, journal: Path, channel: SocketChannel, process: Any) -> None:
        self.url, self.journal, self.channel, self.process = url, journal, channel, process

    def started(self) -> Running:
        """Wait until it serves."""
        assert self.channel.receive() == {"ready": True}
        return self

    def tell(self, **message: Any) -> Any:
        """Send a command and return its acknowledgement."""
        self.channel.send(message)
        return self.channel.receive()

    def state(self) -> Any:
        """Return ``/harness/state``."""
        return httpx.get(f"{self.url}/harness/state", timeout=LIMIT_S).json()

    def wait_for(self, condition: Any) -> Any:
        """Read the state until a condition holds for it; return that state."""
        end_s = time.monotonic() + LIMIT_S
        while not condition(state := self.state()):
            assert time.monotonic() < end_s, state
        return state


@contextlib.contextmanager
def running_gateway(directory: Path, upstream: Upstream, **overrides: Any) -> Iterator[Running]:
    """Start a gateway in front of an upstream; kill it afterwards."""
    config = gateway_config(directory, upstream, **overrides)
    ours, theirs = socket.socketpair()
    with ours, socket.create_server(("127.0.0.1", 0)) as listener:
        process = _forkserver.Process(
            target=_serve_gateway, args=(config, config["workers"] == 2, theirs, listener)
        )
        process.start()
        theirs.close()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.close()
        try:
            yield Running(url, Path(config["journal"]), SocketChannel(ours), process)
        finally:
            process.kill()
            process.join(LIMIT_S)


def gateway_config(directory: Path, upstream: Upstream, **overrides: Any) -> dict[str, Any]:
    """Return a gateway's config as the stage makes it."""
    return {
        "index": 0,
        "workers": len(upstream.pids["workers"]),
        "gpu_offset": 0,
        "seed": SEED,
        "draft": False,
        "backend": "ipc",
        "profile": "vllm-0.32",
        "rendezvous_s": 1.0,
        "journal": str(directory / "journal.jsonl"),
        "faults": [],
        "token_interval_s": 0.005,
        "server": upstream.server,
    } | overrides
