"""Runs an engine for a moment in the process that the others are forked from.

What libraries and the interpreter do at the first request of each kind is then done once a run,
not once an engine: FastAPI tokenizes the source of a route's function, patterns are compiled, the
bytecode of each function is specialised (which also writes to its pages, so that every child would
copy them). It leaves no thread, socket or file behind, and nothing that an engine could read.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping

import aiohttp

from fakes.engine.app import EngineConfig, build_engine
from fakes.engine.gate import POINTS
from fakes.engine.process import make_server
from harness.contracts import Json, NoFaults, no_record

ROUNDS = 8  # the interpreter looks at a function from its eighth call on
# What an engine answers without its workers, which are threads: the process must have one only.
WORKERLESS = (
    ("GET", "/get_world_size"),
    ("GET", "/is_paused"),
    ("GET", "/weight_info"),
    ("GET", "/harness/state"),
    ("POST", "/update_weight_version"),
    ("POST", "/resume"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/v1/completions"),
)
BODIES: Mapping[str, Json] = {
    "/init_weight_transfer_engine": {"init_info": {}},
    "/update_weights": {"update_info": {}},
    "/finish_weight_update": {},
    "/update_weight_version": {"new_version": "default"},
    "/weight_checker": {"action": "checksum"},
    "/collective_rpc": {"method": "check_health"},
    "/v1/completions": {"prompt": [1], "max_tokens": 2},
}


def warm_up() -> None:
    """Serve every request of a push a few times, over loopback, and take everything down."""
    asyncio.run(_run())


async def _run() -> None:
    engine = build_engine(
        EngineConfig(backend=None, token_interval_s=0.0),
        make_transfer=lambda rank: None,
        injector=NoFaults(),
        record=no_record,
        on_death=lambda: None,
        harness=True,
    )
    server = make_server(engine.gate, lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        async with aiohttp.ClientSession() as client:
            for _ in range(ROUNDS):
                await _ask(client, url, WORKERLESS)
            # A dead core refuses what needs workers, after all layers in front of it.
            engine.core.dead = True
            for _ in range(ROUNDS):
                await _ask(client, url, POINTS)
        server.should_exit = True
        await serving


async def _ask(client: aiohttp.ClientSession, url: str, routes: Iterable[tuple[str, str]]) -> None:
    for method, path in routes:
        async with client.request(method, f"{url}{path}", json=BODIES.get(path)) as answer:
            await answer.read()
