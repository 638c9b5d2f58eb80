"""The process that the harness calls an engine when the engine is a real vLLM server.

It stands in front of the server: its gate journals every request and lets the scenario's faults
strike it, its proxy passes on the rest. It gives the scenario a server in the state of a fresh
engine, tells the agents in the workers of faults and pushes, and watches what is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn
import uvloop

from fakes.engine.gate import Gate, GateExchange, Receive, Scope, Send, signal_self
from harness.contracts import Channel, Json, Recorder
from harness.injector import ScenarioInjector
from harness.journal import JournalWriter
from vllm_engine.agent_client import AgentError, Agents
from vllm_engine.engine_processes import EngineProcesses
from vllm_engine.engine_view import AGENT_LIMIT_S, START_LABEL, EngineView
from vllm_engine.known_weights import KnownWeights
from vllm_engine.proxy import Proxy
from vllm_engine.served import NUM_TOKENS, PROMPT, Served, ask
from vllm_engine.token_stream import Publications, TokenStream

# transport -> the worker's end of it (`plugin.BACKENDS`): what stands in for it on the CPU
ON_CPU = {"nccl": "gloo", "ipc": "shared_memory"}
ON_GPUS = {"nccl": "cuda_nccl", "ipc": "cuda_ipc"}
STATE_PATH = "/harness/state"
NO_WEIGHTS = b"weights=no"
CONFIGURE_LIMIT_S = 10.0
RESET_LIMIT_S = 30.0
EXIT_DEAD = 1


class GatewayError(Exception):
    """The server could not be put into the state of a fresh engine; nothing was started."""


class Gateway:
    """One gateway: an ASGI app, and what it does before and beside it.

    Args:
        config: as for `main`.
        record: the run's journal.
        expected: gives what the weights of a step serve.
    """

    def __init__(
        self, config: Mapping[str, Json], record: Recorder, expected: Callable[[int], Served]
    ) -> None:
        server = config["server"]
        self._config, self._record = config, record
        self.url: str = server["url"]
        self.processes = EngineProcesses(server["pids"])
        self.agents = Agents([Path(path) for path in server["agents"]])
        self.weights = KnownWeights(expected, seed=config["seed"], workers=config["workers"])
        self.injector = ScenarioInjector(
            config["faults"], role="engine", index=config["index"], record=record
        )
        self._publications = Publications(record)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Gate]:
        """Reset the server, and yield the app while the token stream runs beside it.

        Raises:
            GatewayError: the server is not as a fresh engine is.
            AgentError: a worker's agent does not answer.
        """
        async with AsyncExitStack() as stack:
            stack.callback(self.agents.close)
            # Its own connections are not kept either; see `vllm_engine.proxy`.
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
            http = await stack.enter_async_context(
                aiohttp.ClientSession(
                    connector=connector, timeout=aiohttp.ClientTimeout(total=None)
                )
            )
            view = EngineView(
                http,
                self.url,
                agents=self.agents,
                processes=self.processes,
                weights=self.weights,
            )
            await self._reset(http)
            self._record("started", workers=self._config["workers"])
            proxy = await stack.enter_async_context(
                Proxy(self.url, on_answer=_Watcher(view, self._publications))
            )
            gate = Gate(
                _Routes(proxy, view),
                view.session,
                injector=self.injector,
                record=self._record,
                signal=self._signal,
            )
            view.in_flight = gate.in_flight
            stream = TokenStream(
                http,
                self.url,
                weights=self.weights,
                publications=self._publications,
                record=self._record,
            )
            streaming = asyncio.create_task(stream.run())
            try:
                yield gate
            finally:
                streaming.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await streaming

    async def obey(self, message: Mapping[str, Json]) -> None:
        """Do what the launcher says, here and in every worker.

        A worker that is stopped does not hear of it; whoever asks for the state is told.
        """
        if message["cmd"] == "push":
            self.injector.begin_push(message["n"])
            await asyncio.to_thread(self.weights.begin_push, message["n"])
        else:
            self.injector.disarm()
        try:
            await self.agents.tell(message, limit_s=AGENT_LIMIT_S)
        except AgentError as error:
            print(error)

    async def _reset(self, http: aiohttp.ClientSession) -> None:
        """Give the scenario a fresh engine; its faults are armed after that and strike none of it.

        Pausing with ``abort`` ends what an earlier scenario left waiting and clears the caches.
        """
        config = self._config
        await self.agents.tell({"cmd": "forget"}, limit_s=CONFIGURE_LIMIT_S)
        backend = (ON_GPUS if config.get("gpus") else ON_CPU)[config["backend"]]
        reset = {
            "method": "resync_chaos_reset",
            "kwargs": {"backend": backend, "seed": config["seed"]},
        }
        await self._post(http, "/pause?mode=abort&clear_cache=true")
        await self._post(http, "/collective_rpc", reset)
        await self._post(http, "/update_weight_version", {"new_version": START_LABEL})
        await self._post(http, "/resume")
        configure = {
            "cmd": "configure",
            "index": config["index"],
            "who": f"engine:{config['index']}",
            "journal": config["journal"],
            "faults": config["faults"],
            "push": 0,
            "rendezvous_s": config["rendezvous_s"],
            "gpu_offset": config["gpu_offset"],
        }
        await self.agents.tell(configure, limit_s=CONFIGURE_LIMIT_S)
        await self._check_fresh(http)

    async def _check_fresh(self, http: aiohttp.ClientSession) -> None:
        states = await self.agents.states(limit_s=AGENT_LIMIT_S)
        open_or_armed = [
            rank
            for rank, state in enumerate(states)
            if state is None or state["active"] or state["armed"] or state["initialised"]
        ]
        async with asyncio.timeout(RESET_LIMIT_S):
            answer = await ask(http, self.url)
        step = None if answer is None else self.weights.step_of(answer.served)
        label = None if answer is None else answer.label
        if open_or_armed or (step, label) != (0, START_LABEL):
            raise GatewayError(
                f"{self.url}: expected a fresh engine after its reset: no session, no layer that "
                f"waits for weights, label {START_LABEL!r}, weights of step 0; found label "
                f"{label!r}, step {step}, workers {states}. Restart the server."
            )

    async def _post(self, http: aiohttp.ClientSession, route: str, body: Json = None) -> None:
        async with (
            asyncio.timeout(RESET_LIMIT_S),
            http.post(f"{self.url}{route}", json=body) as answer,
        ):
            text = await answer.text()
        if answer.status != 200:
            raise GatewayError(
                f"{self.url}{route}: expected 200 from a healthy server, found "
                f"{answer.status}: {text[:400]}. Restart the server; its log says more."
            )

    def _signal(self, number: int, process: str | None) -> None:
        self.processes.signal(number, process)
        if process is None:
            signal_self(number, None)  # as of a fake, nothing of the engine is left to answer


class _Watcher:
    """Learns from what passes: published labels go into the journal, in the order of the answers.

    The server sets a label before it answers, and the client acts on the answer after this has
    seen it, so what the client does next comes later in the journal.
    """

    def __init__(self, view: EngineView, publications: Publications) -> None:
        self._view, self._publications = view, publications

    def __call__(self, scope: Scope, body: bytes, status: int) -> None:
        if scope["method"] != "POST" or status != 200:
            return
        match scope["path"]:
            case "/pause":
                self._view.paused = True
            case "/resume":
                self._view.paused = False
            case "/update_weight_version":
                self._publish(scope, body, "new_version")
            case "/finish_weight_update":
                self._publish(scope, body, "weight_version")

    def _publish(self, scope: Scope, body: bytes, key: str) -> None:
        """Take the label from a request that was granted; to vLLM an absent body is none."""
        types = [value for name, value in scope["headers"] if name == b"content-type"]
        if not body or not any(b"json" in value for value in types):
            return
        label = json.loads(body).get(key)
        if isinstance(label, str):
            self._view.label = label
            self._publications.publish(label)


class _Routes:
    """What is behind the gate: the harness's own route, and the server for everything else."""

    def __init__(self, proxy: Proxy, view: EngineView) -> None:
        self._proxy, self._view = proxy, view

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == STATE_PATH:
            exchange = GateExchange(self._proxy, scope, receive, send, signal_self)
            weights = scope["query_string"] != NO_WEIGHTS
            await exchange.respond(200, await self._view.state(weights=weights))
        elif scope["type"] == "http":
            await self._proxy(scope, receive, send)


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers, telling the launcher when it serves."""

    def __init__(self, config: uvicorn.Config, channel: Channel) -> None:
        super().__init__(config)
        self._channel = channel

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._channel.send({"ready": True})


def main(config: Mapping[str, Json], channel: Channel, sockets: list[socket.socket]) -> None:
    """Stand in front of one real server until the channel closes or the server dies.

    Args:
        config: ``index``, ``workers``, ``gpu_offset``, ``seed``, ``backend`` (``nccl`` or
            ``ipc``), ``rendezvous_s``, ``journal`` (path), ``faults``, and ``server``: ``url``,
            ``agents`` (paths of the workers' sockets, by rank) and ``pids`` (``server``, ``core``,
            ``workers``); and ``gpus`` where the workers have any. What else a fake engine is given
            is ignored.
        channel: the launcher's; takes ``{"cmd": "push", "n": 2}`` and ``{"cmd": "disarm"}``.
        sockets: one TCP listener, bound and listening.

    Raises:
        GatewayError: the server cannot be reset.
    """
    # Here, since it imports transformers, and the rest of this module does without.
    from vllm_engine.reference import Reference

    reference = Reference(config["seed"])
    serve(config, channel, sockets, lambda step: reference.serve(step, PROMPT, NUM_TOKENS))


def serve(
    config: Mapping[str, Json],
    channel: Channel,
    sockets: list[socket.socket],
    expected: Callable[[int], Served],
) -> None:
    """`main`, with what the weights of a step serve."""
    record = JournalWriter(Path(config["journal"]), f"engine:{config['index']}")
    gateway = Gateway(config, record, expected)
    # Accepted sockets inherit it; without it small answers wait for the client's delayed ACK.
    sockets[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(gateway, channel, sockets))


async def _serve(gateway: Gateway, channel: Channel, sockets: list[socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    leaving = os.pidfd_open(gateway.processes.server_pid)
    # As of a fake whose core has died: the connections break, and the port is closed.
    loop.add_reader(leaving, os._exit, EXIT_DEAD)
    async with gateway.running() as gate:
        threading.Thread(
            target=_obey, args=(channel, gateway, loop), name="channel", daemon=True
        ).start()
        settings = uvicorn.Config(
            gate,
            http="httptools",
            ws="none",
            lifespan="off",
            proxy_headers=False,
            server_header=False,  # the server's own are passed on
            date_header=False,
            access_log=False,
            log_config=None,
        )
        await _Server(settings, channel).serve(sockets=sockets)


def _obey(channel: Channel, gateway: Gateway, loop: asyncio.AbstractEventLoop) -> None:
    """Do what the launcher says; leave when it has gone."""
    while (message := channel.receive()) is not None:
        obeying: Any = asyncio.run_coroutine_threadsafe(gateway.obey(message), loop)
        obeying.result()
        channel.send({"ok": True, "cmd": message["cmd"]})
    os._exit(0)
