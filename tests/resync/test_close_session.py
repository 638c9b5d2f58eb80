"""Closing a session by its last event, under today's session rules and the coming ones."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fake_vllm import FakeEngine, FakeTransport
from httpx_wire import HttpxWire

from resync import EngineControl, EngineMismatch, PushTimeouts
from resync.engine_control import Session

UNKNOWN, CLOSED, OPEN = Session.UNKNOWN, Session.CLOSED, Session.OPEN
UPDATE_FAILED, FINISH_FAILED = Session.UPDATE_FAILED, Session.FINISH_FAILED


def close(
    engine: FakeEngine, session: Session, *, has_draft: bool, draft: bool
) -> tuple[list[str], Session]:
    """Close the session of an engine; return the requests and what is known afterwards."""
    wire = FakeTransport([engine])

    async def run() -> Session:
        async with HttpxWire(wire) as httpx_wire:
            control = EngineControl(
                index=0, url="http://engine-0", wire=httpx_wire, timeouts=PushTimeouts()
            )
            control.session, control.session_is_draft = session, draft
            await control.close_session(has_draft=has_draft)
            return control.session

    known = asyncio.run(run())
    return wire.actions(), known


# fmt: off
CASES = [
    # last event     open?  half loaded?  draft?  push has a draft?  requests
    (CLOSED,         False, False,        False,  False, ""),
    (CLOSED,         False, False,        False,  True,  ""),
    (OPEN,           True,  False,        False,  False, "finish"),
    (OPEN,           True,  False,        True,   True,  "finish"),
    (UPDATE_FAILED,  False, True,         False,  False, "start finish"),
    (UPDATE_FAILED,  True,  True,         False,  False, "start finish"),  # refused in front
    (UPDATE_FAILED,  False, True,         True,   True,  "start_draft finish"),
    (FINISH_FAILED,  True,  False,        False,  False, "finish"),
    (FINISH_FAILED,  False, False,        False,  False, "finish start finish"),
    (FINISH_FAILED,  False, False,        True,   True,  "finish start_draft finish"),
    (UNKNOWN,        False, False,        False,  False, "start finish"),
    (UNKNOWN,        True,  False,        False,  False, "start finish"),
    (UNKNOWN,        True,  True,         False,  False, "start finish"),
    (UNKNOWN,        False, True,         False,  False, "start finish"),
    (UNKNOWN,        False, False,        False,  True,  "start finish start_draft finish"),
    (UNKNOWN,        True,  True,         True,   True,  "start finish start_draft finish"),
]
# fmt: on


@pytest.mark.parametrize("rules", ["vllm-0.32", "vllm-next"])
@pytest.mark.parametrize(("session", "active", "half", "draft", "has_draft", "requests"), CASES)
def test_close_session(
    session: Session,
    active: bool,
    half: bool,
    draft: bool,
    has_draft: bool,
    requests: str,
    rules: str,
) -> None:
    """Afterwards no session is open and no layer half loaded; nothing was published."""
    engine = FakeEngine(0, rules, paused=True, active=active, session_is_draft=draft)
    if active or half:
        engine.layers.armed = True
    engine.layers.loaded = ["q"] if half else []
    found = close(engine, session, has_draft=has_draft, draft=draft)
    assert found == (requests.split(), CLOSED)
    assert engine.active is False
    assert not any(
        model.armed or model.loaded or model.leftover for model in engine.models.values()
    )
    assert engine.label == "default"
    assert engine.violations == []


@pytest.mark.parametrize(("paused", "session"), [(True, UNKNOWN), (False, CLOSED)])
def test_session_found(paused: bool, session: Session) -> None:
    """An engine that generates can have no session open; a paused one may have."""
    assert EngineControl.session_found(paused=paused) is session


def test_finish_that_never_works() -> None:
    """An engine that refuses start and finish is said to, with both answers."""

    def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500, text="no")

    async def run() -> tuple[str, Session]:
        async with HttpxWire(httpx.MockTransport(refuse)) as httpx_wire:
            control = EngineControl(
                index=0, url="http://engine-0", wire=httpx_wire, timeouts=PushTimeouts()
            )
            control.session = FINISH_FAILED
            with pytest.raises(EngineMismatch) as refused:
                await control.close_session(has_draft=False)
            return str(refused.value), control.session

    assert asyncio.run(run()) == (
        "engine 0: close: expected a session that can be closed or opened, found neither: "
        "engine 0: start: expected HTTP 200, found 500: no; "
        "engine 0: finish: expected HTTP 200, found 500: no",
        FINISH_FAILED,
    )
