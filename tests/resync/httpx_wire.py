"""A wire over an httpx transport, so that tests can answer requests without a socket."""

from __future__ import annotations

from typing import Any, Self

import httpx

from resync.wire import Answer, WireError


class HttpxWire:
    """Implements `resync.wire.Wire`."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._client = httpx.AsyncClient(transport=transport, timeout=None)

    async def request(self, method: str, url: str, body: Any) -> Answer:
        try:
            response = await self._client.request(method, url, json=body)
        except httpx.HTTPError as error:
            raise WireError(str(error) or type(error).__name__) from error
        return Answer(response.status_code, response.content)

    async def close(self) -> None:
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
