"""What a fault can do to a request at an engine's front end, over real sockets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engines import fault, running_process

from harness.journal import read_journal

pytestmark = pytest.mark.processes


# fmt: off
CASES = [
    # id               kind             options           what the client gets          started
    ("reject",         "reject",        {},               500,                          False),
    ("disconnect",     "disconnect",    {},               httpx.RemoteProtocolError,    False),
    ("request-lost",   "request_lost",  {},               httpx.ReadTimeout,            False),
    ("reply-lost",     "reply_lost",    {},               httpx.RemoteProtocolError,    True),
    ("reply-silent",   "reply_lost",    {"silent": True}, httpx.ReadTimeout,            True),
    ("hang",           "hang",          {},               httpx.ReadTimeout,            False),
]
# fmt: on


@pytest.mark.parametrize(
    ("kind", "options", "gets", "started"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_a_fault_at_start(
    tmp_path: Path, kind: str, options: dict[str, Any], gets: Any, started: bool
) -> None:
    """Each fault gives the client its own failure, with or without the request's effect."""
    faults = [fault(kind, "engine.start", options=options)]
    with (
        running_process(tmp_path, faults=faults) as (url, _, _),
        httpx.Client(base_url=url, timeout=10) as client,
    ):
        if isinstance(gets, int):
            assert client.post("/start_weight_update").status_code == gets
        else:
            with pytest.raises(gets):
                client.post(
                    "/start_weight_update", timeout=0.3 if gets is httpx.ReadTimeout else 10
                )
        state = client.get("/harness/state").json()
        assert state["workers"][0]["active"] is started
        assert client.get("/health").status_code == 200


def test_a_dropped_connection_is_seen_at_once(tmp_path: Path) -> None:
    """``drop`` takes uvicorn's transport away, so that the client waits for no time-out."""
    faults = [fault("disconnect", "engine.pause")]
    with (
        running_process(tmp_path, faults=faults) as (url, _, _),
        httpx.Client(base_url=url, timeout=5) as client,
    ):
        began = time.monotonic()
        with pytest.raises(httpx.RemoteProtocolError):
            client.post("/pause")
        assert time.monotonic() - began < 1.0
        assert client.get("/is_paused").json() == {"is_paused": False}


def test_a_stale_version_still_reads_the_body(tmp_path: Path) -> None:
    """A fault may look at a body, and what it answers changes nothing in the engine."""
    faults = [fault("stale_version", "engine.publish")]
    with (
        running_process(tmp_path, faults=faults) as (url, _, _),
        httpx.Client(base_url=url) as client,
    ):
        for version in ("default", "2"):
            answer = client.post("/update_weight_version", json={"new_version": "2"})
            assert answer.json() == {"success": True, "new_version": "2"}
            assert client.get("/weight_info").json() == {"weight_version": version}


def test_requests_are_journalled(tmp_path: Path) -> None:
    """Begin and end of each request, its point, status and session; nothing of the harness's."""
    with (
        running_process(tmp_path, draft=True) as (url, _, _),
        httpx.Client(base_url=url) as client,
    ):
        client.post("/start_draft_weight_update")
        client.post("/finish_weight_update")
        client.post("/finish_weight_update")
        client.get("/health")
        client.get("/is_sleeping")
        client.get("/harness/state")
    events = [e for e in read_journal(tmp_path / "journal.jsonl") if e["event"] == "request"]
    ended = [
        (e["id"], e["point"], e["status"], e["session"], e.get("load", False))
        for e in events
        if e["phase"] == "end"
    ]
    assert ended == [
        (1, "engine.start", 200, "draft", False),
        (2, "engine.finish", 200, "draft", False),
        (3, "engine.finish", 500, "target", False),
        (4, "engine.health", 200, None, True),
        (5, "GET /is_sleeping", 200, None, False),
    ]
    assert [e["id"] for e in events if e["phase"] == "begin"] == [1, 2, 3, 4, 5]


def test_a_request_that_outlives_its_client(tmp_path: Path) -> None:
    """What a fault delays beyond its client's time-out is carried out, body and all."""
    faults = [fault("slow", "engine.publish", options={"seconds": 0.3})]
    with (
        running_process(tmp_path, faults=faults) as (url, _, _),
        httpx.Client(base_url=url, timeout=10) as client,
    ):
        with pytest.raises(httpx.ReadTimeout):
            client.post("/update_weight_version", json={"new_version": "2"}, timeout=0.1)
        deadline = time.monotonic() + 10
        while client.get("/weight_info").json() != {"weight_version": "2"}:
            assert time.monotonic() < deadline
