"""An engine behind an in-memory transport: vLLM's session rules, and a script of failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

ACTIONS = {
    "/init_weight_transfer_engine": "init",
    "/shutdown_weight_transfer_engine": "shutdown",
    "/pause": "pause",
    "/reset_prefix_cache": "flush",
    "/start_weight_update": "start",
    "/start_draft_weight_update": "start_draft",
    "/update_weights": "update",
    "/finish_weight_update": "finish",
    "/update_weight_version": "publish",
    "/weight_info": "version",
    "/is_paused": "is_paused",
    "/resume": "resume",
    "/collective_rpc": "probe",
    "/get_world_size": "world_size",
    "/metrics": "metrics",
}
OPERATIONS = ("init", "shutdown", "start", "start_draft", "update", "finish")
TENSORS = ("q", "k", "v")

OPEN_ALREADY = (
    "start_weight_update called while a weight update is already active. "
    "Call finish_weight_update first."
)
NO_SESSION = "finish_weight_update called without a matching start_weight_update."
NOT_STARTED = "start_weight_update must be called before update_weights."


class WorkerError(Exception):
    """What a worker raises; the front end answers 500."""


@dataclass(kw_only=True)
class Strike:
    """One failure: strikes visits of ``action`` on an engine, counted from 1 by this strike.

    Kinds: ``reject`` (the front end, before any effect), ``raise`` (the worker, with the effect
    that the rules say), ``request_lost``, ``reply_lost``, ``hang`` (before any effect), ``lie``
    (200 without the effect), ``restart`` (the engine is new when the request arrives),
    ``foreign`` (somebody else has just set the label ``other``).
    """

    action: str
    kind: str
    engine: int = 0
    nth: int = 1
    always: bool = False
    draft: bool | None = None  # only while the session of this model is open
    visits: int = 0

    def hits(self, engine: FakeEngine, action: str) -> bool:
        """Count this visit and return whether it is struck."""
        if (engine.index, action) != (self.engine, self.action):
            return False
        if self.draft is not None and engine.session_is_draft is not self.draft:
            return False
        self.visits += 1
        return self.always or self.visits == self.nth


@dataclass
class Layers:
    """One model's weights on an engine. ``armed``: a start has put the layers aside."""

    weights: str = "start"
    armed: bool = False
    loaded: list[str] = field(default_factory=list)
    content: str = ""
    leftover: bool = False  # a start skipped layers that a failed update had left half loaded

    def start(self) -> None:
        """Arm the layers; what a failed session has loaded into them already stays."""
        self.leftover = bool(self.loaded)
        self.armed = True

    def finish(self) -> None:
        """Commit what arrived, complete or not."""
        if self.leftover or 0 < len(self.loaded) < len(TENSORS):
            self.weights = "torn"
        elif self.loaded:
            self.weights = self.content
        self.armed, self.leftover, self.loaded = False, False, []


@dataclass
class FakeEngine:
    """The state of one engine under the rules ``vllm-0.32`` or ``vllm-next``.

    Under ``vllm-next`` a start, update or finish that fails in the worker ends the session.
    """

    index: int
    rules: str = "vllm-0.32"
    workers: int = 1
    label: str = "default"
    paused: bool = False
    active: bool = False
    session_is_draft: bool = False
    joined: bool = False
    operations: set[str] = field(default_factory=set)  # weight operations since the start
    in_flight: list[int] = field(default_factory=list)  # what the gauge shows next; 0 at the end
    prefix_cache: str = "start"
    models: dict[bool, Layers] = field(default_factory=lambda: {False: Layers(), True: Layers()})
    violations: list[str] = field(default_factory=list)

    def restart(self) -> None:
        """Come back as a new process: initial weights, no channel, generation running."""
        self.label, self.paused, self.active, self.joined = "default", False, False, False
        self.models = {False: Layers(), True: Layers()}
        self.operations.clear()
        self.in_flight.clear()

    def metrics(self) -> str:
        """Return the gauge as vLLM shows it: absent until the first weight operation."""
        gauge = "vllm:rl_weight_update_operations_in_flight"
        if not self.operations:
            return ""
        value = self.in_flight.pop(0) if self.in_flight else 0
        return "".join(
            f'{gauge}{{operation="{name}"}} {float(value if not number else 0)}\n'
            for number, name in enumerate(sorted(self.operations))
        )

    @property
    def layers(self) -> Layers:
        """The layers of the model whose session is, or was last, open."""
        return self.models[self.session_is_draft]

    def handle(self, action: str, body: Any, *, fails: bool) -> dict[str, Any]:
        """Answer one request; ``fails`` makes the worker raise in the middle of it."""
        handler = getattr(self, f"_{action}")
        answer = handler(body, fails)
        if fails:
            raise WorkerError("injected")
        return answer if isinstance(answer, dict) else {"status": "ok"}

    def _init(self, body: Any, fails: bool) -> None:
        self.joined = not fails

    def _shutdown(self, body: Any, fails: bool) -> None:
        if self.active:
            raise WorkerError("Cannot release a trainer connection during a weight update")
        self.joined = False

    def _pause(self, body: Any, fails: bool) -> None:
        self.paused = self.paused or not fails

    def _resume(self, body: Any, fails: bool) -> None:
        if fails:
            return
        self.paused = False
        if self.active or self.models[False].armed:
            self.violations.append("resumed with weights put aside")

    def _flush(self, body: Any, fails: bool) -> None:
        if not fails:
            self.prefix_cache = "empty"

    def _start(self, body: Any, fails: bool, *, draft: bool = False) -> None:
        if self.active:
            raise WorkerError(OPEN_ALREADY)
        if fails:
            return
        if not self.paused:
            self.violations.append("start on a running engine")
        self.active, self.session_is_draft = True, draft
        self.layers.start()

    def _start_draft(self, body: Any, fails: bool) -> None:
        self._start(body, fails, draft=True)

    def _update(self, body: Any, fails: bool) -> None:
        if not self.active:
            raise WorkerError(NOT_STARTED)
        info = body["update_info"]
        names = info["names"]
        if not self.joined or fails:
            self.active = False
            self.layers.loaded = names[:1]
            raise WorkerError("injected" if fails else "weight transfer not initialized")
        if self.session_is_draft is not info["content"].startswith("draft"):
            self.violations.append("weights of the other model")
        self.layers.loaded = [*self.layers.loaded, *names]
        self.layers.content = info["content"]

    def _finish(self, body: Any, fails: bool) -> None:
        if body:
            self.violations.append(f"finish carried {body}")
        if not self.active:
            raise WorkerError(NO_SESSION)
        if fails:
            self.active = self.rules == "vllm-0.32"
            return
        if not self.paused and self.layers.loaded:
            self.violations.append("committed on a running engine")
        self.active = False
        self.layers.finish()

    def _publish(self, body: Any, fails: bool) -> None:
        if not fails:
            self.label = body["new_version"]

    def _version(self, body: Any, fails: bool) -> dict[str, Any]:
        return {"weight_version": self.label}

    def _is_paused(self, body: Any, fails: bool) -> dict[str, Any]:
        return {"is_paused": self.paused}

    def _probe(self, body: Any, fails: bool) -> dict[str, Any]:
        return {"results": [["generate"]] * self.workers}

    def _world_size(self, body: Any, fails: bool) -> dict[str, Any]:
        return {"world_size": self.workers}


@dataclass(frozen=True)
class Request:
    """One request as it arrived at an engine."""

    engine: int
    action: str
    target: str  # path and query
    body: Any


class FakeTransport(httpx.AsyncBaseTransport):
    """Carries requests for ``http://engine-<n>`` to fake engines and lets strikes hit them."""

    def __init__(self, engines: Sequence[FakeEngine], strikes: Sequence[Strike] = ()) -> None:
        self.engines = engines
        self.strikes = list(strikes)
        self.log: list[Request] = []

    @property
    def urls(self) -> list[str]:
        """The engines' addresses."""
        return [f"http://engine-{engine.index}" for engine in self.engines]

    def actions(self, engine: int = 0) -> list[str]:
        """What one engine was asked, in order."""
        return [request.action for request in self.log if request.engine == engine]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Strike, or answer as the engine does."""
        engine = self.engines[int(request.url.host.removeprefix("engine-"))]
        action = ACTIONS[request.url.path]
        body = json.loads(request.content) if request.content else None
        target = request.url.raw_path.decode()
        self.log.append(Request(engine.index, action, target, body))
        kinds = [strike.kind for strike in self.strikes if strike.hits(engine, action)]
        kind = kinds[0] if kinds else ""
        if kind == "reject":
            return httpx.Response(500, text="refused by the front end")
        if kind == "request_lost":
            raise httpx.ConnectError("connection refused", request=request)
        if kind == "hang":
            await asyncio.Event().wait()
        if kind == "lie":
            return httpx.Response(200, json={"status": "ok"})
        if kind == "restart":
            engine.restart()
        if kind == "foreign":
            engine.label = "other"
        if action == "metrics":
            return httpx.Response(200, text=engine.metrics())
        if action in OPERATIONS:
            engine.operations.add(action)
        try:
            answer = engine.handle(action, body, fails=kind == "raise")
        except WorkerError as error:
            return httpx.Response(500, text=str(error))
        if kind == "reply_lost":
            raise httpx.ReadError("connection reset", request=request)
        return httpx.Response(200, json=answer)


class Dribble(httpx.AsyncByteStream):
    """A body of which a byte comes now and then, for ever."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield spaces, each well within any time-out of one read."""
        while True:
            yield b" "
            await asyncio.sleep(0.01)
