"""HTTP to the engines: one request, one answer. Time-outs are the caller's.

aiohttp, because it costs a fifth of the CPU of the alternatives in a loop that sends a dozen small
requests to each engine in a row, and because vLLM depends on it anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

# Below uvicorn's 5 s: a connection is never used again when the server may be closing it.
KEEP_ALIVE_S = 2.0


class WireError(Exception):
    """No answer: the connection could not be made, or ended before the answer did."""


@dataclass(frozen=True)
class Answer:
    """One HTTP response."""

    status: int
    content: bytes

    @property
    def text(self) -> str:
        """The body as text; what is not UTF-8 is replaced."""
        return self.content.decode(errors="replace")


class Wire(Protocol):
    """Carries requests. Used on one event loop only."""

    async def request(self, method: str, url: str, body: Any) -> Answer:
        """Send a request with a JSON body, or none, and return the answer.

        Raises:
            WireError: there was none.
        """

    async def close(self) -> None:
        """Close every connection."""


class HttpWire:
    """The network. The engines are inside the cluster, so no proxy of the environment is used."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def request(self, method: str, url: str, body: Any) -> Answer:
        """Implement `Wire.request`; a connection that gave a bad status is not used again."""
        if self._session is None:  # made here, since it belongs to the loop that runs
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                trust_env=False,
            )
        try:
            async with self._session.request(method, url, json=body) as response:
                answer = Answer(response.status, await response.read())
                if response.status != 200:
                    # vLLM answers a failed engine call and then closes the connection without
                    # having said so; a request that is sent on it meanwhile would be lost.
                    response.close()
                return answer
        except (aiohttp.ClientError, OSError) as error:
            raise WireError(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Implement `Wire.close`."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
