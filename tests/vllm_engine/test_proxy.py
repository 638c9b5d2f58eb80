"""The proxy: a client cannot tell it from the server behind it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
import uvicorn

from fakes.engine.gate import ConnectionDropped, Gate, Receive, Scope, Send
from harness.contracts import NoFaults, no_record
from vllm_engine.proxy import Proxy

LIMIT_S = 10.0
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Upstream:
    """A server whose answers need a careful proxy; it notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes, bytes, list[tuple[bytes, bytes]]]] = []
        self.go_on = asyncio.Event()
        self.left = asyncio.Event()
        self.finished = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.asked.append(
            (scope["method"], scope["raw_path"] + b"?" + scope["query_string"], body,
             [(n, v) for n, v in scope["headers"]
              if n not in (b"host", b"connection") and (n, v) != (b"content-length", b"0")])
        )  # fmt: skip
        match scope["path"]:
            case "/error":
                await _answer(send, 500, b'{"error": 1}', (b"content-type", b"application/json"))
                raise RuntimeError("the server logs it, and closes the connection")
            case "/cut":
                await _start(send, 200, (b"content-length", b"100"))
                await send({"type": "http.response.body", "body": b"half", "more_body": True})
                transport = getattr(send, "__self__").transport  # noqa: B009
                transport.abort()
            case "/stream":
                await _start(send, 200)
                await send({"type": "http.response.body", "body": b"one", "more_body": True})
                await self.go_on.wait()
                await send({"type": "http.response.body", "body": b"two"})
            case "/zipped":
                data = zlib.compress(b"z" * 999)
                await _answer(send, 200, data, (b"content-encoding", b"deflate"))
            case "/v1/completions" | "/update_weights":
                leaving = asyncio.create_task(_gone(receive))
                going_on = asyncio.create_task(self.go_on.wait())
                await asyncio.wait((leaving, going_on), return_when=asyncio.FIRST_COMPLETED)
                if leaving.done():
                    self.left.set()
                going_on.cancel()
                leaving.cancel()
                self.finished.set()
                await _answer(send, 200, b"done")
            case path:
                status = int(path.strip("/")) if path.strip("/").isdigit() else 200
                headers = ((b"x-two", b"1"), (b"x-two", b"2"), (b"set-cookie", b"a=b"))
                await _answer(send, status, body or b"nothing", *headers)


async def _start(send: Send, status: int, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def _answer(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    body = b"" if status == 204 else body
    length = () if status == 204 else ((b"content-length", str(len(body)).encode()),)
    await _start(send, status, *headers, *length)
    await send({"type": "http.response.body", "body": body})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """Serve an app on loopback in this loop; yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = uvicorn.Config(
            app, lifespan="off", log_config=None, server_header=False, date_header=False
        )
        settings.load()
        server = uvicorn.Server(settings)
        server.lifespan = settings.lifespan_class(settings)
        await server.startup([listener])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.force_exit = True
            await server.shutdown([listener])


class Behind:
    """A server, a gate with a proxy in front of it, and a client of both."""

    def __init__(self) -> None:
        self.upstream = Upstream()
        self.answers: list[tuple[str, bytes, int]] = []
        self.requests: list[dict[str, Any]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Behind]:
        def note(scope: Scope, body: bytes, status: int) -> None:
            self.answers.append((scope["path"], body, status))

        def record(event: str, /, **fields: Any) -> None:
            self.requests.append(fields)

        async def session() -> str:
            return "target"

        async with (
            asyncio.timeout(LIMIT_S),
            serving(self.upstream) as self.direct,
            Proxy(self.direct, on_answer=note) as proxy,
            serving(Gate(proxy, session, injector=NoFaults(), record=record)) as self.proxied,
            httpx.AsyncClient(timeout=LIMIT_S) as self.client,
        ):
            yield self


# fmt: off
REQUESTS = [
    # id             method     path              what else
    ("get",          "GET",     "/200",           {}),
    ("query",        "GET",     "/200?a=b%20c&a=&%C3%A9=1", {}),
    ("odd-path",     "GET",     "/a%2Fb//c/../d?x=%3F", {}),
    ("post-nothing", "POST",    "/200",           {}),
    ("post-json",    "POST",    "/200",           {"json": {"a": [1, 2]}}),
    ("no-type",      "POST",    "/200",           {"content": b'{"a": 1}'}),
    ("bytes",        "POST",    "/200",           {"content": bytes(range(256)) * 999}),
    ("head",         "HEAD",    "/200",           {}),
    ("no-content",   "DELETE",  "/204",           {}),
    ("redirect",     "GET",     "/307",           {}),
    ("bad",          "POST",    "/400",           {"json": {}}),
    ("missing",      "GET",     "/404",           {"headers": {"x-a": "1", "accept": "text/x"}}),
    ("dead",         "GET",     "/503",           {}),
    ("zipped",       "GET",     "/zipped",        {}),
]
# fmt: on


@pytest.mark.parametrize(
    ("method", "path", "what"), [case[1:] for case in REQUESTS], ids=[case[0] for case in REQUESTS]
)
def test_nothing_is_changed(method: str, path: str, what: dict[str, Any]) -> None:
    """Server and client see the same request and the same answer as without the proxy."""

    async def run() -> None:
        async with Behind().running() as behind:
            seen = []
            for url in (behind.direct, behind.proxied):
                async with behind.client.stream(method, url + path, **what) as answer:
                    data = b"".join([part async for part in answer.aiter_raw()])
                seen.append((answer.status_code, answer.headers.raw, data))
                behind.client.cookies.clear()
            assert seen[0] == seen[1]
            first, second = behind.upstream.asked
            # The order of headers among different names means nothing (RFC 9110, 5.3).
            assert (first[:3], sorted(first[3])) == (second[:3], sorted(second[3]))

    asyncio.run(run())


def test_an_error_closes_the_connection_on_both_sides() -> None:
    """Body and status of a 500 come through, and no request is lost to a connection that is closed
    behind it, however fast they follow each other."""

    async def run() -> None:
        async with Behind().running() as behind:
            for _ in range(50):
                answer = await behind.client.post(f"{behind.proxied}/error")
                assert (answer.status_code, answer.json()) == (500, {"error": 1})
                assert answer.headers["connection"] == "close"
                assert (await behind.client.get(f"{behind.proxied}/200")).status_code == 200

    asyncio.run(run())


def test_an_answer_is_streamed() -> None:
    """What the server has sent arrives while the server has not finished."""

    async def run() -> None:
        async with (
            Behind().running() as behind,
            behind.client.stream("GET", f"{behind.proxied}/stream") as answer,
        ):
            parts = answer.aiter_raw()
            assert await anext(parts) == b"one"
            behind.upstream.go_on.set()
            assert await anext(parts) == b"two"

    asyncio.run(run())


def test_a_dead_server_drops_the_connection() -> None:
    """Refused, or cut in the middle of its answer: the client sees a broken connection, no 502."""

    async def run() -> None:
        async with Behind().running() as behind:
            with pytest.raises(httpx.RemoteProtocolError):
                await behind.client.get(f"{behind.proxied}/cut")
            async with Proxy("http://127.0.0.1:1") as nobody:

                async def session() -> str:
                    return "target"

                gate = Gate(nobody, session, injector=NoFaults(), record=no_record)
                async with serving(gate) as url:
                    with pytest.raises(httpx.RemoteProtocolError):
                        await behind.client.post(f"{url}/200")

    asyncio.run(run())


def test_without_a_gate_the_error_is_raised() -> None:
    """The proxy never answers for a server that is not there."""

    async def run() -> None:
        messages = iter([{"type": "http.request"}])

        async def receive() -> dict[str, Any]:
            return next(messages, None) or await asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            raise AssertionError(message)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "raw_path": b"/",
            "query_string": b"",
            "headers": [],
        }
        async with Proxy("http://127.0.0.1:1") as proxy:
            with pytest.raises(ConnectionDropped, match=r"^http://127\.0\.0\.1:1: "):
                await proxy(scope, receive, send)

    asyncio.run(run())


def test_a_client_that_leaves_its_completion() -> None:
    """The server hears of it, as it would without the proxy, and may stop."""

    async def run() -> None:
        async with Behind().running() as behind:
            with pytest.raises(httpx.ReadTimeout):
                await behind.client.post(f"{behind.proxied}/v1/completions", timeout=0.2)
            await behind.upstream.left.wait()
            assert behind.answers == []

    asyncio.run(run())


def test_a_client_that_leaves_an_update() -> None:
    """The server carries it out, and how it ended is told and journalled, after its end."""

    async def run() -> None:
        async with Behind().running() as behind:
            with pytest.raises(httpx.ReadTimeout):
                await behind.client.post(
                    f"{behind.proxied}/update_weights", content=b"x", timeout=0.2
                )
            while len(behind.upstream.asked) < 1:
                await asyncio.sleep(0)
            assert [r["phase"] for r in behind.requests] == ["begin"]
            behind.upstream.go_on.set()
            while not behind.answers or len(behind.requests) < 2:
                await asyncio.sleep(0)
            assert not behind.upstream.left.is_set()
            assert behind.answers == [("/update_weights", b"x", 200)]
            assert [(r["phase"], r["status"]) for r in behind.requests] == [
                ("begin", None),
                ("end", 200),
            ]

    asyncio.run(run())
