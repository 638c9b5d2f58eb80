"""A reverse proxy as an ASGI app: what a server answers, byte for byte, or no answer at all.

A client must not be able to tell the proxy from the server: not by a status of the proxy's own,
not by headers, and not by what happens to the server when the client leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

import aiohttp
from yarl import URL

from fakes.engine.gate import ConnectionDropped, Receive, Scope, Send

# Of one connection, not of the message (RFC 9110, 7.6.1); the lengths are set anew.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# aiohttp would add these; vLLM reads a JSON body by its content type alone, or not at all.
NEVER_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
# vLLM stops working on these, and on no others, when their client leaves
# (``with_cancellation`` in ``entrypoints/serve/utils/api_utils.py``).
CANCELLED_WITH_CLIENT = ("/v1/", "/inference/")

Watcher = Callable[[Scope, bytes, int], None]  # scope, request body, status of the answer


class Proxy:
    """Forwards every request to one server. Use it as an async context.

    Args:
        url: the server's, without a path.
        on_answer: told the request's scope, its body and the answer's status before anybody sees
            the answer, also when nobody will.
    """

    def __init__(self, url: str, *, on_answer: Watcher = lambda scope, body, status: None) -> None:
        self._url = url
        self._on_answer = on_answer
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # One connection a request. vLLM closes a connection after a 500 without saying so, and an
        # idle one after 5 s; a request that meets such a close is lost, and no client of the
        # server's own would have lost it. A fresh loopback connection costs some 0.3 ms.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._http = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=NEVER_ADDED,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._http is not None
        await self._http.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request.

        Raises:
            ConnectionDropped: the server refused or closed the connection; its own client would
                have seen its connection close.
        """
        body = await _read_body(receive)
        if body is None:
            return  # the client left before it had asked
        forwarding = asyncio.create_task(self._forward(scope, body, send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait((forwarding, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not forwarding.done() and scope["path"].startswith(CANCELLED_WITH_CLIENT):
                return
            # Everything else the server carries out to its end, which the journal must hold.
            await forwarding
        finally:
            for task in (forwarding, leaving):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionDropped):
                    await task

    async def _forward(self, scope: Scope, body: bytes, send: Send) -> None:
        assert self._http is not None, "the proxy has not been entered"
        path = scope.get("raw_path") or scope["path"].encode()
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        url = URL(f"{self._url}{(path + query).decode('ascii')}", encoded=True)
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name not in HOP_BY_HOP and name not in (b"host", b"content-length", b"expect")
        ]
        try:
            async with self._http.request(
                scope["method"], url, headers=headers, data=body or None, allow_redirects=False
            ) as answer:
                self._on_answer(scope, body, answer.status)
                await send(
                    {
                        "type": "http.response.start",
                        "status": answer.status,
                        "headers": _headers(answer),
                    }
                )
                async for data in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionDropped(f"{self._url}: {error}") from error


def _headers(answer: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    headers = [
        (name.lower(), value)
        for name, value in answer.raw_headers
        if name.lower() not in HOP_BY_HOP
    ]
    if answer.status == 500:
        # vLLM closes the connection after these as well, a moment later and without saying so. A
        # client that was told cannot lose its next request to that moment.
        headers.append((b"connection", b"close"))
    return headers


async def _read_body(receive: Receive) -> bytes | None:
    """Return a request's body; ``None`` if the client left before its end."""
    parts = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)
    return None


async def _left(receive: Receive) -> None:
    """Return when the client has gone, or has had its answer."""
    while (await receive())["type"] != "http.disconnect":
        pass
