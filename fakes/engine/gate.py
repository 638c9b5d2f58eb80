"""The outermost layer of an engine: journals every request and lets faults strike it.

It is pure ASGI, so that an answer can be thrown away, replaced or never given without what is
behind it knowing: the routes of a fake engine, or a proxy to a real one.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from harness.contracts import Injector, Json, Recorder

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
SessionOf = Callable[[], Awaitable[str]]  # of the update that is open: "draft" or "target"
Signal = Callable[[int, str | None], None]  # as `harness.contracts.Exchange.signal`

HARNESS_PREFIX = "/harness/"

POINTS: Mapping[tuple[str, str], str] = {
    ("POST", "/init_weight_transfer_engine"): "engine.init",
    ("POST", "/shutdown_weight_transfer_engine"): "engine.shutdown",
    ("POST", "/start_weight_update"): "engine.start",
    ("POST", "/start_draft_weight_update"): "engine.start",
    ("POST", "/update_weights"): "engine.update",
    ("POST", "/finish_weight_update"): "engine.finish",
    ("POST", "/update_weight_version"): "engine.publish",
    ("GET", "/weight_info"): "engine.version",
    ("POST", "/weight_checker"): "engine.checksum",
    ("POST", "/pause"): "engine.pause",
    ("POST", "/resume"): "engine.resume",
    ("GET", "/is_paused"): "engine.is_paused",
    ("POST", "/reset_prefix_cache"): "engine.flush",
    ("POST", "/sleep"): "engine.sleep",
    ("POST", "/wake_up"): "engine.wake_up",
    ("POST", "/collective_rpc"): "engine.probe",
    ("GET", "/get_world_size"): "engine.world_size",
    ("GET", "/health"): "engine.health",
    ("POST", "/v1/completions"): "engine.completion",
}

LOAD_PATHS = frozenset({"/v1/completions", "/health", "/metrics"})  # no progress of a push


class ConnectionDropped(Exception):
    """Raised by the app behind a gate that has no answer: its client loses the connection."""


def signal_self(number: int, process: str | None) -> None:
    """Send a signal to this process, which is the whole engine."""
    os.kill(os.getpid(), number)


class GateExchange:
    """One request at the front end; implements `harness.contracts.Exchange`."""

    def __init__(
        self, app: AsgiApp, scope: Scope, receive: Receive, send: Send, signal: Signal
    ) -> None:
        self.status: int | None = None
        self.signal = signal
        self._app, self._scope = app, scope
        self._receive, self._send = receive, send
        self._unread: deque[Message] = deque()  # what `take_body` took, for the engine to read

    async def take_body(self) -> None:
        """Keep the whole body for the engine: the server forgets it once its client has gone.

        A request that a fault delays is handled all the same, as one that has reached a real
        engine is.
        """
        while not self._unread or self._unread[-1].get("more_body", False):
            self._unread.append(await self._receive())

    async def read_json(self) -> Json:
        """Return the request's JSON body, or ``{}``; the engine can still read it."""
        await self.take_body()
        body = b"".join(part.get("body", b"") for part in self._unread)
        return json.loads(body) if body else {}

    async def forward(self, *, deliver: bool = True) -> None:
        """Run the engine's own handler; ``deliver=False`` throws its answer away."""
        send = self._deliver if deliver else _discard
        try:
            await self._app(self._scope, self._next_message, send)
        except ConnectionDropped:
            if deliver:
                await self.drop()
        except Exception:
            # Starlette raises what became a 500 once more, for the server to log; we have no log.
            return

    async def respond(self, status: int, body: Json) -> None:
        """Answer in the engine's place, with a JSON body."""
        data = json.dumps(body).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(data)).encode()),
        ]
        await self._deliver({"type": "http.response.start", "status": status, "headers": headers})
        await self._deliver({"type": "http.response.body", "body": data})

    async def drop(self) -> None:
        """Close the connection without an answer; the client sees it at once.

        ASGI has no word for that, so this takes uvicorn's transport: the ``send`` that it gives
        an app is a method of its request cycle. A test pins that down.

        Raises:
            ConnectionResetError: there is no uvicorn below (an in-process client gets the error).
        """
        transport = getattr(getattr(self._send, "__self__", None), "transport", None)
        if transport is None:
            raise ConnectionResetError("connection dropped by a fault")
        transport.abort()
        await self.hold()  # the server calls it an error to return before it has noticed

    async def hold(self) -> None:
        """Never answer; returns when the client has gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _next_message(self) -> Message:
        return self._unread.popleft() if self._unread else await self._receive()

    async def _deliver(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


class Gate:
    """Wraps an engine's app: one fault point and two journal events for each request.

    Args:
        app: the engine's own routes, or what stands for them.
        session_of: tells which session is open; asked at each update and finish.
        signal: what a fault that kills or freezes does to the engine.

    Attributes:
        in_flight: request number -> fault point, of the requests that have not been answered.
    """

    def __init__(
        self,
        app: AsgiApp,
        session_of: SessionOf,
        *,
        injector: Injector,
        record: Recorder,
        signal: Signal = signal_self,
    ) -> None:
        self.in_flight: dict[int, str] = {}
        self._app, self._session_of = app, session_of
        self._injector, self._record, self._signal = injector, record, signal
        self._ids = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(HARNESS_PREFIX):
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        point = POINTS.get((method, path))
        fields = await self._fields(point or f"{method} {path}", path)
        number = next(self._ids)
        exchange = GateExchange(self._app, scope, receive, send, self._signal)
        self.in_flight[number] = fields["point"]
        self._record("request", id=number, phase="begin", status=None, **fields)
        try:
            await self._exchange(exchange, point, fields["session"])
        finally:
            del self.in_flight[number]
            self._record("request", id=number, phase="end", status=exchange.status, **fields)

    async def _exchange(self, exchange: GateExchange, point: str | None, session: Json) -> None:
        where = {} if session is None else {"session": session}
        fault = None if point is None else self._injector.pick(point, **where)
        if fault is None:
            await exchange.forward()
        else:
            await exchange.take_body()
            await fault.at_request(exchange)

    async def _fields(self, point: str, path: str) -> dict[str, Json]:
        fields: dict[str, Json] = {"point": point, "session": await self._session(point, path)}
        if path in LOAD_PATHS:
            fields["load"] = True
        return fields

    async def _session(self, point: str, path: str) -> str | None:
        """Return which session a request belongs to: by its route, or as the workers have it."""
        if point == "engine.start":
            return "draft" if path == "/start_draft_weight_update" else "target"
        if point in ("engine.update", "engine.finish"):
            return await self._session_of()
        return None


async def _discard(message: Message) -> None:
    """Take a message of an answer that nobody is to see."""
