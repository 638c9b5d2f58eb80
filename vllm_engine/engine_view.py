"""What the harness sees of a real engine, whatever state it is in: ``/harness/state``.

Everything is read in bounded time. The workers' own state comes from their agents, which answer
while a worker is stuck; what only the engine core knows is asked of it while nobody is busy, and is
what was seen last otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp

from harness.contracts import Json
from vllm_engine.agent_client import Agents
from vllm_engine.engine_processes import EngineProcesses
from vllm_engine.known_weights import KnownWeights
from vllm_engine.served import NotANumberError, ServedError, ask

AGENT_LIMIT_S = 1.0
READ_LIMIT_S = 2.0
SERVE_LIMIT_S = 5.0
START_LABEL = "default"
# What vLLM's core has its workers do once it has paused (``EngineCore.pause_scheduler``).
PAUSING_RPC = "synchronize_device"
UNKNOWN = "unknown"  # weights that cannot be shown: nothing is served from them now
SILENT: Mapping[str, Json] = {"active": False, "is_draft": False, "initialised": False}


class EngineView:
    """One engine, as read past its gate.

    Args:
        http: for requests to the server, which bound their own time.
        url: the server's own.

    Attributes:
        label, paused: as seen last; the gateway updates them from the answers that pass it.
        in_flight: the gate's requests that have not been answered.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        *,
        agents: Agents,
        processes: EngineProcesses,
        weights: KnownWeights,
    ) -> None:
        self.label = START_LABEL
        self.paused = False
        self.in_flight: Mapping[int, str] = {}
        self._http, self._url = http, url
        self._agents, self._processes, self._weights = agents, processes, weights
        self._last_states: list[Mapping[str, Json]] = [SILENT for _ in agents.clients]

    async def state(self, *, weights: bool = True) -> dict[str, Json]:
        """Return the JSON of a fake's ``/harness/state``, without what only a fake can know.

        Without ``weights`` nothing is served for it, and both checksums are null: the monitor asks
        often, and not for them. ``armed`` is a number of layers per worker, ``backlog`` is not
        known, and ``checksums`` are those of the step whose weights explain what is served,
        ``"unknown"`` while nothing is served, and null while a parameter has no memory.
        """
        workers = await self._workers()
        if any(worker["busy"] == PAUSING_RPC for worker in workers):
            self.paused = True
        core_answers, dead = True, bool(self._processes.gone())
        if not dead and not _busy(workers):
            core_answers, dead = await self._read()
        if not core_answers:
            for worker in workers:
                worker["busy"] = worker["busy"] or "the core gives no answer"
        checksums: dict[str, str] | str | None = None
        if weights:
            checksums = UNKNOWN if dead else await self._checksums(workers)
        return {
            "version": self.label,
            "paused": self.paused,
            "sleeping": False,  # on CPU no memory ever is
            "dead": dead or bool(self._processes.gone()),
            "in_flight": list(self.in_flight.values()),
            "workers": workers,
            "checksums": checksums,
            "draft_checksums": {},  # there is no draft model
        }

    async def session(self) -> str:
        """Return whether an open session is the draft's: ``draft`` or ``target``."""
        workers = await self._workers()
        return "draft" if any(w["active"] and w["is_draft"] for w in workers) else "target"

    async def _workers(self) -> list[dict[str, Json]]:
        frozen = self._processes.frozen()
        states = await self._agents.states(limit_s=AGENT_LIMIT_S)
        rows = []
        for rank, state in enumerate(states):
            known = self._last_states[rank] if state is None else state
            self._last_states[rank] = known
            busy = known.get("busy") if state is not None else "its agent gives no answer"
            if frozen:
                busy = f"frozen: {', '.join(frozen)}"
            rows.append(
                {
                    "active": known["active"],
                    "is_draft": known["is_draft"],
                    "initialized": known["initialised"],
                    "armed": known.get("armed", 0),
                    "meta": bool(known.get("on_meta", 0)),
                    "backlog": None,
                    "busy": busy,
                    "pending": [],
                }
            )
        return rows

    async def _read(self) -> tuple[bool, bool]:
        """Ask server and core; return whether the core answers, and whether the engine is dead."""
        health, info, paused = await asyncio.gather(
            self._get("/health"), self._get("/weight_info"), self._get("/is_paused")
        )
        if health is None:
            return False, bool(self._processes.gone())
        if health[0] == 503:
            return True, True
        if info is not None and info[0] == 200:
            self.label = info[1]["weight_version"]
        if paused is not None and paused[0] == 200:
            self.paused = paused[1]["is_paused"]
        return info is not None and paused is not None, False

    async def _get(self, path: str) -> tuple[int, Any] | None:
        """Return status and JSON; ``None`` without an answer in time."""
        try:
            async with (
                asyncio.timeout(READ_LIMIT_S),
                self._http.get(f"{self._url}{path}") as answer,
            ):
                body = await answer.read()
                return answer.status, await answer.json() if body else None
        except (aiohttp.ClientError, OSError):  # a time-out is an OSError
            return None

    async def _checksums(self, workers: list[dict[str, Json]]) -> dict[str, str] | str | None:
        """Have the engine serve, if it would, and name the weights that it served from."""
        if any(worker["meta"] for worker in workers):
            return None  # a request would kill the engine
        if self.paused or _busy(workers):
            return UNKNOWN
        try:
            async with asyncio.timeout(SERVE_LIMIT_S):
                answer = await ask(self._http, self._url)
        except NotANumberError:
            return self._weights.checksums(None)
        except (aiohttp.ClientError, OSError, ServedError):
            return UNKNOWN
        if answer is None:  # paused in this moment
            return UNKNOWN
        return self._weights.checksums(self._weights.step_of(answer.served))


def _busy(workers: list[dict[str, Json]]) -> bool:
    return any(worker["busy"] is not None for worker in workers)
