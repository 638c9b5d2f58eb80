"""An engine as a process: the launcher's entry point.

``main`` serves on a socket that the launcher bound, tells it when it is ready, and leaves when the
launcher has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
import uvicorn

from fakes.data_plane.receivers import WorkerTransfer, make_worker_transfer
from fakes.engine.app import EngineConfig, build_engine
from fakes.engine.gate import Gate
from harness.contracts import Channel, Json
from harness.injector import ScenarioInjector
from harness.journal import JournalWriter

DEATH_DELAY_S = 0.5  # from the core's death to the process's; vLLM's watchdog takes up to 5 s
EXIT_DEAD = 1


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers, telling somebody when it serves."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()


def make_server(gate: Gate, on_ready: Callable[[], None]) -> uvicorn.Server:
    """Return the server of one engine; ``on_ready`` is called once it serves."""
    settings = uvicorn.Config(
        gate,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        proxy_headers=False,
        access_log=False,
        log_config=None,
    )
    return _Server(settings, on_ready)


def main(config: Mapping[str, Json], channel: Channel, sockets: list[socket.socket]) -> None:
    """Serve one engine until the channel closes or its core dies.

    Args:
        config: ``index``, ``workers``, ``gpu_offset`` (global number of worker 0), ``seed``,
            ``draft``, ``backend``, ``profile``, ``model``, ``rendezvous_s``, ``journal`` (path),
            ``faults`` and ``token_interval_s``.
        channel: the launcher's; takes ``{"cmd": "push", "n": 2}`` and ``{"cmd": "disarm"}``.
        sockets: one TCP listener, bound and listening.
    """
    torch.set_num_threads(1)
    index = config["index"]
    record = JournalWriter(Path(config["journal"]), f"engine:{index}")
    record("started", workers=config["workers"])
    injector = ScenarioInjector(config["faults"], role="engine", index=index, record=record)
    shape = EngineConfig(
        workers=config["workers"],
        seed=config["seed"],
        draft=config["draft"],
        backend=config["backend"],
        profile=config["profile"],
        model=config.get("model", "fake"),
        token_interval_s=config["token_interval_s"],
    )

    def make_transfer(rank: int) -> WorkerTransfer | None:
        if config["backend"] is None:
            return None
        return make_worker_transfer(
            config["backend"],
            rank=rank,
            world_size=config["workers"],
            gpu_uuid=f"GPU-{config['gpu_offset'] + rank}",
            rendezvous_s=config["rendezvous_s"],
            record=record,
        )

    engine = build_engine(
        shape,
        make_transfer=make_transfer,
        injector=injector,
        record=record,
        on_death=_leave_soon,
        harness=True,
    )
    threading.Thread(target=_obey, args=(channel, injector), name="channel", daemon=True).start()
    # Accepted sockets inherit it; without it small answers wait for the client's delayed ACK.
    sockets[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    make_server(engine.gate, lambda: channel.send({"ready": True})).run(sockets=sockets)


def _leave_soon() -> None:
    asyncio.get_running_loop().call_later(DEATH_DELAY_S, os._exit, EXIT_DEAD)


def _obey(channel: Channel, injector: ScenarioInjector) -> None:
    """Do what the launcher says; leave when it has gone."""
    while (message := channel.receive()) is not None:
        command = message["cmd"]
        if command == "push":
            injector.begin_push(message["n"])
        else:
            injector.disarm()
        channel.send({"ok": True, "cmd": command})
    os._exit(0)
