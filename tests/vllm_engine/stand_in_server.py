"""A server without vLLM for the pool's tests: real agents, and the two routes that the pool asks.

``POST /become`` with a list of words makes it misbehave: ``shifted`` (its last worker answers the
call before), ``busy`` (its first worker is in an RPC for ever) and ``sick`` (``/health`` is 503).
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.contracts import Channel, Json
from vllm_engine.agent import Agent


class StandInWorker:
    """What an agent reads of vLLM's ``Worker``, with a thread that runs its RPCs."""

    def __init__(self) -> None:
        self._weight_update_active = False
        self._weight_update_is_draft = False
        self.weight_transfer_engine = SimpleNamespace(initialised=False)
        self.parameters = [SimpleNamespace(is_meta=False), SimpleNamespace(is_meta=True)]
        self.buffers = [SimpleNamespace(is_meta=False)]
        model = SimpleNamespace(
            parameters=lambda: iter(self.parameters), buffers=lambda: iter(self.buffers)
        )
        self.model_runner = SimpleNamespace(get_model=lambda: model)
        self.running = threading.Event()
        self.leave = threading.Event()

    def run(self, method: str) -> threading.Thread:
        """Start a thread that is in the RPC ``method`` until `leave` is set."""

        def _execute_worker_rpc(method: str) -> None:  # the name of vLLM's frame
            self.running.set()
            self.leave.wait()

        thread = threading.Thread(target=_execute_worker_rpc, args=(method,), daemon=True)
        thread.start()
        assert self.running.wait(5)
        return thread


class _Server(ThreadingHTTPServer):
    def __init__(self, sock: socket.socket, config: Mapping[str, Json]) -> None:
        super().__init__(sock.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = sock
        self.num_workers: int = config["workers"]
        self.words: list[str] = []
        self.tokens = [""]
        self.agents = []
        for rank in range(self.num_workers):
            worker = StandInWorker()
            thread = worker.run("update_weights")
            path = Path(config["agents_dir"]) / f"worker-{rank}.sock"
            # Of another thread than the one in the RPC, until the server becomes busy.
            agent = Agent(worker, rank=rank, path=path, count_armed=lambda model: 0)
            agent.start()
            self.agents.append((agent, thread))

    def become(self, words: list[str]) -> None:
        self.words = words
        agent, thread = self.agents[0]
        assert thread.ident is not None
        agent.follow(thread.ident if "busy" in words else threading.main_thread().ident)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self._answer(503 if "sick" in self.server.words else 200, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/become":
            self.server.become(body)
            self._answer(200, {})
            return
        assert (self.path, body["method"]) == ("/collective_rpc", "resync_chaos_echo")
        self.server.tokens += body["args"]
        replies = [body["args"][0]] * self.server.num_workers
        if "shifted" in self.server.words:
            replies[-1] = self.server.tokens[-2]
        self._answer(200, {"results": replies})

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def healthy(config: Mapping[str, Json], channel: Channel, sockets: list[socket.socket]) -> None:
    """Come up, and serve until the launcher has gone."""
    channel.send({"progress": "loading weights"})
    server = _Server(sockets[0], config)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pids = {
        "server": os.getpid(),
        "core": os.getpid(),
        "workers": [os.getpid()] * config["workers"],
    }
    channel.send({"ready": True, "pids": pids})
    while channel.receive() is not None:
        pass


def failing(config: Mapping[str, Json], channel: Channel, sockets: list[socket.socket]) -> None:
    """Die on the way up, with more to say than the pool shows."""
    channel.send({"progress": "loading weights"})
    for number in range(100):
        print(f"line {number}")
    os._exit(3)


def silent(config: Mapping[str, Json], channel: Channel, sockets: list[socket.socket]) -> None:
    """Never come up."""
    print("still loading")
    while channel.receive() is not None:
        pass
