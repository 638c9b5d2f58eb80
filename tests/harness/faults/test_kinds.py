"""Every fault kind, against a fake exchange or in a real thread or process."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.errors import InjectionError
from harness.fault_points import FAULT_POINTS
from harness.faults import FAULTS
from harness.faults.kind import FaultKind

ROOT = Path(__file__).parents[3]


class FakeExchange:
    """Notes what a fault does to a request; `harness.contracts.Exchange`."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    async def read_json(self) -> Any:
        return {"new_version": "7"}

    async def forward(self, *, deliver: bool = True) -> None:
        self.done.append("forward" if deliver else "forward, undelivered")

    async def respond(self, status: int, body: Any) -> None:
        self.done.append((status, body))

    async def drop(self) -> None:
        self.done.append("drop")

    async def hold(self) -> None:
        self.done.append("hold")


def _error(status: int, kind: str, text: str) -> dict[str, Any]:
    return {"error": {"message": text, "type": kind, "param": None, "code": status}}


TEXT = "Call to collective_rpc method failed: injected rejection"
REFUSED = _error(500, "InternalServerError", TEXT)
BUSY = _error(400, "Bad Request", "busy")
PUBLISHED = {"success": True, "new_version": "7"}

# fmt: off
AT_REQUEST = [
    # id             kind             options              what happens to the request
    ("reject",       "reject",        {},                  [(500, REFUSED)]),
    ("reject-400",   "reject",        {"status": 400, "text": "busy"}, [(400, BUSY)]),
    ("hang",         "hang",          {},                  ["hold"]),
    ("slow",         "slow",          {"seconds": 0.001},  ["forward"]),
    ("request-lost", "request_lost",  {},                  ["hold"]),
    ("reply-lost",   "reply_lost",    {},                  ["forward, undelivered", "drop"]),
    ("reply-silent", "reply_lost",    {"silent": True},    ["forward, undelivered", "hold"]),
    ("disconnect",   "disconnect",    {},                  ["drop"]),
    ("stale",        "stale_version", {},                  [(200, PUBLISHED)]),
    ("lie",          "lie",           {"body": {"a": 1}},  [(200, {"a": 1})]),
]
LABELS = [
    ("reject",        {"status": 404},   "answers 404"),
    ("hang",          {},                "hangs"),
    ("slow",          {"seconds": 1.5},  "slow by 1.5 s"),
    ("request_lost",  {},                "loses the request"),
    ("reply_lost",    {},                "loses the reply"),
    ("disconnect",    {},                "drops the connection"),
    ("raise",         {},                "raises"),
    ("stale_version", {},                "keeps its old version"),
    ("port_taken",    {},                "finds its port taken"),
    ("kill",          {},                "is killed"),
    ("lie",           {"body": {}},      "answers what is not true"),
]
INVALID = [
    ("status-too-low",  "reject",     {"status": 200}),
    ("status-text",     "reject",     {"status": "500"}),
    ("no-seconds",      "slow",       {}),
    ("negative",        "slow",       {"seconds": -1.0}),
    ("endless",         "slow",       {"seconds": float("inf")}),
    ("unknown-field",   "kill",       {"group": True}),
    ("silent-number",   "reply_lost", {"silent": 1}),
    ("no-body",         "lie",        {}),
]
# fmt: on


@pytest.mark.parametrize(
    ("kind", "options", "done"), [case[1:] for case in AT_REQUEST], ids=[c[0] for c in AT_REQUEST]
)
def test_at_request(kind: str, options: dict[str, Any], done: list[Any]) -> None:
    """Each kind ends a request in its own way, and in no other."""
    exchange = FakeExchange()
    asyncio.run(FAULTS[kind](**options).at_request(exchange))
    assert exchange.done == done


def test_raise() -> None:
    """A thread that reaches the point raises the scenario's message."""
    with pytest.raises(RuntimeError, match=r"^out of memory$"):
        FAULTS["raise"](message="out of memory").in_thread({})


def test_slow_in_a_thread() -> None:
    """A slow thread goes on after the given time."""
    begun_s = time.monotonic()
    FAULTS["slow"](seconds=0.05).in_thread({})
    assert time.monotonic() - begun_s >= 0.05


def test_hang_in_a_thread() -> None:
    """A hanging thread does not come back, and holds up no other thread."""
    thread = threading.Thread(target=FAULTS["hang"]().in_thread, args=({},), daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()


def test_port_taken() -> None:
    """The port is listened on from then on, each time, and a port that is not free is an error."""
    fault = FAULTS["port_taken"]()
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        fault.in_thread({"port": port})
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    message = (
        f"fault port_taken: expected port {port} of 127.0.0.1 to be free just before the sender "
        f"binds it, found: [Errno 98] Address already in use. Reach rank.bind before the port is "
        f"bound."
    )
    with pytest.raises(InjectionError) as caught:
        fault.in_thread({"port": port})
    assert str(caught.value) == message


@pytest.mark.parametrize("side", ["in_thread({})", "at_request(None)"])
def test_kill(side: str) -> None:
    """A killed process dies of SIGKILL, on either side, and nobody else does."""
    call = f"FAULTS['kill']().{side}"
    run = f"asyncio.run({call})" if "request" in side else call
    code = f"import asyncio; from harness.faults import FAULTS; {run}; print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


@pytest.mark.parametrize(("kind", "options", "label"), LABELS, ids=[case[0] for case in LABELS])
def test_label(kind: str, options: dict[str, Any], label: str) -> None:
    """Reports say what a fault does in a few words."""
    assert FAULTS[kind](**options).label() == label


@pytest.mark.parametrize(
    ("kind", "options"), [case[1:] for case in INVALID], ids=[case[0] for case in INVALID]
)
def test_invalid_options(kind: str, options: dict[str, Any]) -> None:
    """A kind takes its own fields alone, in their ranges and types."""
    with pytest.raises(ValidationError):
        FAULTS[kind](**options)


def test_the_table_is_whole() -> None:
    """Every kind is listed under its own name, has a label, a test row, and somewhere to strike."""
    assert {name: fault.kind for name, fault in FAULTS.items()} == {name: name for name in FAULTS}
    assert {case[0] for case in LABELS} == set(FAULTS)
    for fault in FAULTS.values():
        assert any(fault.can_strike(point) for point in FAULT_POINTS), fault


def test_a_kind_acts_on_every_side_that_it_can_strike() -> None:
    """A kind overrides exactly the sides that its points are on."""
    for fault in FAULTS.values():
        roles = {point.role for point in FAULT_POINTS.values() if fault.can_strike(point.name)}
        assert ("engine" in roles) == (fault.at_request is not FaultKind.at_request), fault
        assert bool(roles & {"worker", "rank"}) == (fault.in_thread is not FaultKind.in_thread)


def test_misplaced() -> None:
    """A kind that is made to strike on the other side says where it belongs."""
    with pytest.raises(InjectionError) as caught:
        FAULTS["reject"]().in_thread({})
    assert str(caught.value) == (
        "fault reject: expected to strike at engine.*, found a thread. "
        "Move the fault to one of those points."
    )
    with pytest.raises(InjectionError) as caught:
        asyncio.run(FAULTS["raise"]().at_request(FakeExchange()))
    assert str(caught.value) == (
        "fault raise: expected to strike at worker.*, rank.*, found a request. "
        "Move the fault to one of those points."
    )
