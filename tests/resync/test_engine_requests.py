"""The requests to one engine: what is sent, under which time-out, and what a failure says."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from fake_vllm import Dribble, FakeEngine, FakeTransport, Strike
from httpx_wire import HttpxWire

from resync import (
    Bytes,
    EngineControl,
    EngineError,
    EngineLost,
    EngineMismatch,
    EngineRejected,
    EngineTimeout,
    PushTimeouts,
)
from resync.engine_control import Session

LIMITS = PushTimeouts(init_s=0.07, request_s=0.05, settle_s=0.01)
Call = Callable[[EngineControl], Awaitable[Any]]


def ask(
    transport: httpx.AsyncBaseTransport, call: Call, limits: PushTimeouts = LIMITS
) -> tuple[Any, list[dict[str, Any]]]:
    """Run one call; return its result or its error, and what the observer heard."""
    heard: list[dict[str, Any]] = []

    def observe(step: str, /, **details: Any) -> None:
        heard.append({"step": step, **details})

    async def run() -> Any:
        async with HttpxWire(transport) as wire:
            engine = EngineControl(
                index=3, url="http://engine-0/", wire=wire, timeouts=limits, observe=observe
            )
            try:
                return await call(engine)
            except EngineError as error:
                return error

    return asyncio.run(run()), heard


def answers(response: httpx.Response) -> httpx.MockTransport:
    """Return a transport that always gives this response."""
    return httpx.MockTransport(lambda request: response)


# fmt: off
REQUESTS: list[tuple[str, Call, str, Any]] = [
    # action        call                                path and query                  body
    ("init",        lambda e: e.init({"rank_offset": 1}), "/init_weight_transfer_engine",
     {"init_info": {"rank_offset": 1}}),
    ("shutdown",    lambda e: e.shutdown(),             "/shutdown_weight_transfer_engine", None),
    ("pause",       lambda e: e.pause(),                "/pause?mode=keep&clear_cache=false", None),
    ("flush",       lambda e: e.flush(),
     "/reset_prefix_cache?reset_running_requests=false", None),
    ("start",       lambda e: e.start(),                "/start_weight_update",         None),
    ("start",       lambda e: e.start(draft=True),      "/start_draft_weight_update",   None),
    ("update",      lambda e: e.update({"names": []}),  "/update_weights",
     {"update_info": {"names": []}}),
    ("finish",      lambda e: e.finish(),               "/finish_weight_update",        {}),
    ("publish",     lambda e: e.publish("7"),           "/update_weight_version",
     {"new_version": "7"}),
    ("version",     lambda e: e.version(),              "/weight_info",                 None),
    ("is_paused",   lambda e: e.is_paused(),            "/is_paused",                   None),
    ("resume",      lambda e: e.resume(),               "/resume",                      None),
    ("probe",       lambda e: e.probe(),                "/collective_rpc",
     {"method": "get_supported_tasks"}),
    ("world_size",  lambda e: e.world_size(),           "/get_world_size",              None),
]
# fmt: on
REQUEST_IDS = [f"{number}-{case[0]}" for number, case in enumerate(REQUESTS)]
GETS = {"version", "is_paused", "world_size"}


@pytest.mark.parametrize(("action", "call", "target", "body"), REQUESTS, ids=REQUEST_IDS)
def test_request(action: str, call: Call, target: str, body: Any) -> None:
    """Each request has its method, path and body, and is heard once with its limit."""
    engine = FakeEngine(0, active=True, session_is_draft=True, paused=True)
    if action in ("start", "shutdown"):
        engine.active = False
    wire = FakeTransport([engine])
    methods: list[str] = []

    class Recording(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            methods.append(request.method)
            if action == "update":
                return httpx.Response(200)  # an empty answer is an answer
            return await wire.handle_async_request(request)

    result, heard = ask(Recording(), call)
    assert not isinstance(result, EngineError)
    assert methods == ["GET" if action in GETS else "POST"]
    if action != "update":
        assert [(request.target, request.body) for request in wire.log] == [(target, body)]
    limit_s = LIMITS.init_s if action == "init" else LIMITS.request_s
    about = {"step": "request", "engine": 3, "action": action, "limit_s": limit_s}
    seconds = heard[1].pop("seconds")
    assert heard == [{**about, "phase": "begin"}, {**about, "phase": "end", "ok": True}]
    assert 0 <= seconds < limit_s


@pytest.mark.parametrize(("action", "call"), [case[:2] for case in REQUESTS], ids=REQUEST_IDS)
def test_time_out(action: str, call: Call) -> None:
    """Each request ends at its own total time-out, and says that its effect is not known."""

    class Silent(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.Event().wait()
            raise AssertionError

    begun_s = time.monotonic()
    error, heard = ask(Silent(), call)
    took_s = time.monotonic() - begun_s
    limit_s = LIMITS.init_s if action == "init" else LIMITS.request_s
    assert type(error) is EngineTimeout
    assert str(error) == (
        f"engine 3: {action}: expected an answer within {limit_s:g} s, found none. The engine may "
        "still carry the request out"
    )
    assert took_s >= limit_s
    assert heard[-1]["ok"] is False


def test_dribble() -> None:
    """The limit is wall-clock time: a response that trickles in for ever ends as well."""
    error, _ = ask(answers(httpx.Response(200, stream=Dribble())), lambda e: e.start())
    assert type(error) is EngineTimeout


# fmt: off
ANSWERS = [
    # response                                  call                  error, and its text
    (httpx.Response(500, text="boom"),          lambda e: e.start(),  EngineRejected,
     "engine 3: start: expected HTTP 200, found 500: boom"),
    (httpx.Response(404),                       lambda e: e.flush(),  EngineRejected,
     "engine 3: flush: expected HTTP 200, found 404: "),
    (httpx.Response(500, text="x" * 501),       lambda e: e.pause(),  EngineRejected,
     "engine 3: pause: expected HTTP 200, found 500: " + "x" * 500),
    (httpx.Response(200, text="no json"),       lambda e: e.pause(),  EngineMismatch,
     "engine 3: pause: expected a JSON object, found 'no json'"),
    (httpx.Response(200, json=[1]),             lambda e: e.pause(),  EngineMismatch,
     "engine 3: pause: expected a JSON object, found '[1]'"),
    (httpx.Response(200, json={"a": 1}),        lambda e: e.version(), EngineMismatch,
     "engine 3: version: expected a weight_version, found {'a': 1}"),
    (httpx.Response(200, json={}),              lambda e: e.is_paused(), EngineMismatch,
     "engine 3: is_paused: expected is_paused, found {}"),
    (httpx.Response(200, json={"world_size": 0}), lambda e: e.world_size(), EngineMismatch,
     "engine 3: world_size: expected a world_size of 1 or more, found {'world_size': 0}"),
    (httpx.Response(200, json={}),              lambda e: e.world_size(), EngineMismatch,
     "engine 3: world_size: expected a world_size of 1 or more, found {}"),
    (httpx.Response(200, json={"is_paused": False}), lambda e: e.require_paused("start"),
     EngineMismatch,
     "engine 3: start: expected generation to be paused, found it running: the engine was "
     "restarted or somebody resumed it during the push"),
]
# fmt: on


@pytest.mark.parametrize(("response", "call", "kind", "text"), ANSWERS)
def test_answers(response: httpx.Response, call: Call, kind: type[EngineError], text: str) -> None:
    """An answer that is no success, or not what it must be, is an error that quotes it."""
    error, _ = ask(answers(response), call)
    assert type(error) is kind
    assert str(error) == text
    assert (error.engine, error.action) == (3, text.split(": ")[1])


# fmt: off
PROBES: list[tuple[list[Any], bool]] = [
    # results       accepted
    ([["generate"]],      True),
    ([["generate"]] * 2,  False),
    ([None],              False),
    ([],                  False),
]
# fmt: on


@pytest.mark.parametrize(("results", "accepted"), PROBES)
def test_probe_of_one_worker(results: list[Any], accepted: bool) -> None:
    """The probe of an engine with one worker is one request, and wants one answer."""
    error, heard = ask(answers(httpx.Response(200, json={"results": results})), lambda e: e.probe())
    assert [event["action"] for event in heard] == ["probe"] * 2
    if accepted:
        assert error is None
        return
    assert type(error) is EngineMismatch
    assert str(error) == (
        f"engine 3: probe: expected one answer from its worker, found {results!r}: its replies "
        "belong to earlier calls. Restart the engine"
    )


# fmt: off
LOST = [
    # raised                             the end of the text
    (httpx.ConnectError("refused"),      "refused"),
    (httpx.ReadError(""),                "ReadError"),
    (httpx.RemoteProtocolError("cut"),   "cut"),
    (httpx.ReadTimeout("late"),          "late"),
]
# fmt: on


@pytest.mark.parametrize(("raised", "text"), LOST)
def test_lost(raised: httpx.HTTPError, text: str) -> None:
    """A connection that fails leaves it open whether the request took effect."""

    def fail(request: httpx.Request) -> httpx.Response:
        raise raised

    error, _ = ask(httpx.MockTransport(fail), lambda e: e.start())
    assert type(error) is EngineLost
    assert str(error) == f"engine 3: start: no answer from http://engine-0: {text}"


# fmt: off
EVENTS = [
    # call                  struck        session afterwards       bytes
    (lambda e: e.start(),   "",           Session.OPEN,            Bytes.UNCHANGED),
    (lambda e: e.start(),   "reject",     Session.UNKNOWN,         Bytes.UNCHANGED),
    (lambda e: e.start(),   "reply_lost", Session.UNKNOWN,         Bytes.UNCHANGED),
    (lambda e: e.start(),   "hang",       Session.UNKNOWN,         Bytes.UNCHANGED),
    (lambda e: e.update({}), "reject",    Session.UPDATE_FAILED,   Bytes.DIRTY),
    (lambda e: e.update({}), "hang",      Session.UPDATE_FAILED,   Bytes.DIRTY),
    (lambda e: e.finish(),  "reject",     Session.FINISH_FAILED,   Bytes.UNCHANGED),
    (lambda e: e.finish(),  "reply_lost", Session.FINISH_FAILED,   Bytes.UNCHANGED),
]
# fmt: on


@pytest.mark.parametrize(("call", "kind", "session", "bytes_"), EVENTS)
def test_last_event(call: Call, kind: str, session: Session, bytes_: Bytes) -> None:
    """A request leaves what is known of the session, and of the bytes."""

    async def one(engine: EngineControl) -> tuple[Session, Bytes]:
        engine.session = Session.CLOSED
        with contextlib.suppress(EngineError):
            await call(engine)
        return engine.session, engine.bytes

    strikes = [Strike(action=action, kind=kind) for action in ("start", "update", "finish")]
    fake = FakeEngine(
        0, paused=True, active=kind == "reply_lost" and session is not Session.UNKNOWN
    )
    assert ask(FakeTransport([fake], strikes if kind else []), one)[0] == (session, bytes_)


def test_finish_is_the_same_every_time() -> None:
    """A finish never carries a version, whatever was published."""

    async def twice(engine: EngineControl) -> None:
        await engine.publish("7")
        await engine.finish()

    wire = FakeTransport([FakeEngine(0, active=True, paused=True)])
    ask(wire, twice)
    assert wire.log[-1].body == {}
    assert wire.engines[0].violations == []


# fmt: off
FLUSHES = [
    # answers in turn     requests made  what it raises
    ([400, 503, 200],     3,             None),
    ([500, 200],          1,             EngineRejected),
    ([400] * 20,          None,          EngineRejected),  # as many as fit into `settle_s`
]
# fmt: on


@pytest.mark.parametrize(("answers", "asked", "raises"), FLUSHES, ids=["busy", "broken", "always"])
def test_flush_of_a_busy_engine(
    answers: list[int],
    asked: int | None,
    raises: type[EngineError] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy engine is asked again until it is not, or for so long; a broken one is not."""
    made: list[int] = []

    class InTurn(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            made.append(answers[len(made)])
            return httpx.Response(made[-1], json={})

    monkeypatch.setattr("resync.engine_control.FIRST_FLUSH_PAUSE_S", 0.001)
    limits = PushTimeouts(init_s=5, request_s=5, settle_s=0.5)
    result, _ = ask(InTurn(), lambda engine: engine.flush(), limits)
    assert type(result) is (raises or type(None))
    assert len(made) == asked if asked is not None else 2 <= len(made) < 20
