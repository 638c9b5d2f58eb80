"""Talks to the agents: the thread in each vLLM worker that answers while the worker is stuck.

The protocol is JSON lines over one Unix socket per worker, one answer per request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.contracts import Json

MAX_LINE_BYTES = 1 << 20  # faults and states are some hundred bytes


class AgentError(Exception):
    """An agent refused a request, gave no answer in time, or has gone with its worker."""


class AgentClient:
    """One worker's agent. Requests wait for each other; the connection is made when needed.

    Args:
        path: the agent's socket.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: Mapping[str, Json], *, limit_s: float) -> dict[str, Any]:
        """Send one request and return its answer.

        Args:
            request: ``{"cmd": "state"}`` and the like.
            limit_s: for all of it, in seconds; a worker that is stopped never answers.

        Raises:
            AgentError: no answer within ``limit_s``, one that says ``"ok": false``, or no agent.
        """
        try:
            async with asyncio.timeout(limit_s), self._turn:
                answer = await self._exchange(request)
        except (OSError, EOFError, ValueError) as error:  # a time-out is an OSError
            found = str(error) or type(error).__name__
            raise AgentError(
                f"{self.path}: expected an answer to {request['cmd']!r} within {limit_s:g} s, "
                f"found: {found}. See whether the worker lives, and the end of its server's log."
            ) from error
        if answer.get("ok") is False:
            raise AgentError(
                f"{self.path}: expected {request['cmd']!r} to be done, "
                f"found: {answer.get('error', answer)}. Compare it with the agent's protocol."
            )
        return answer

    async def _exchange(self, request: Mapping[str, Json]) -> dict[str, Any]:
        try:
            if self._streams is None:
                self._streams = await asyncio.open_unix_connection(self.path, limit=MAX_LINE_BYTES)
            reader, writer = self._streams
            writer.write(json.dumps(request).encode() + b"\n")
            await writer.drain()
            line = await reader.readline()
            if not line.endswith(b"\n"):
                raise EOFError("the agent closed the connection")
            answer: dict[str, Any] = json.loads(line)
        except BaseException:
            # What an unanswered request is answered later would be taken for the next one's.
            self.close()
            raise
        return answer

    def close(self) -> None:
        """Close the connection; the next request makes a new one."""
        if self._streams is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._streams[1].close()
            self._streams = None


class Agents:
    """All agents of one engine, by rank."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.clients = [AgentClient(path) for path in paths]

    async def tell(self, request: Mapping[str, Json], *, limit_s: float) -> None:
        """Have every agent do the same.

        Raises:
            AgentError: one did not; the others were asked all the same.
        """
        asked = [client.ask(request, limit_s=limit_s) for client in self.clients]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def states(self, *, limit_s: float) -> list[dict[str, Any] | None]:
        """Return what each agent says of its worker; ``None`` for one that gives no answer."""
        asked = [client.ask({"cmd": "state"}, limit_s=limit_s) for client in self.clients]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        states: list[dict[str, Any] | None] = []
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, AgentError):
                raise answer
            states.append(None if isinstance(answer, BaseException) else answer)
        return states

    def close(self) -> None:
        """Close every connection."""
        for client in self.clients:
            client.close()
