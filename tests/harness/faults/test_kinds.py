"""Every fault kind, against a fake exchange or in a real thread or process."""

from __future__ import annotations

import asyncio
import os
import select
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

    def signal(self, number: int, process: str | None, /) -> None:
        self.done.append((signal.Signals(number).name, process))


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
    ("swallow",      "swallow",       {},                  ["hold"]),
    ("reply-lost",   "reply_lost",    {},                  ["forward, undelivered", "drop"]),
    ("reply-silent", "reply_lost",    {"silent": True},    ["forward, undelivered", "hold"]),
    ("disconnect",   "disconnect",    {},                  ["drop"]),
    ("stale",        "stale_version", {},                  [(200, PUBLISHED)]),
    ("lie",          "lie",           {"body": {"a": 1}},  [(200, {"a": 1})]),
    ("kill",         "kill",          {},                  [("SIGKILL", None), "forward"]),
    ("kill-core",    "kill",          {"process": "core"}, [("SIGKILL", "core"), "forward"]),
    ("freeze",       "freeze",        {},                  [("SIGSTOP", None), "forward"]),
    ("freeze-one",   "freeze",        {"process": "worker"}, [("SIGSTOP", "worker"), "forward"]),
]
LABELS = [
    ("reject",        {"status": 404},   "answers 404"),
    ("hang",          {},                "hangs"),
    ("slow",          {"seconds": 1.5},  "is slow by 1.5 s"),
    ("request_lost",  {},                "loses the request"),
    ("reply_lost",    {},                "loses the reply"),
    ("disconnect",    {},                "drops the connection"),
    ("raise",         {},                "raises"),
    ("stale_version", {},                "keeps its old version"),
    ("stale_engines", {},                "knows one engine less"),
    ("port_taken",    {},                "finds its port taken"),
    ("kill",          {},                "is killed"),
    ("kill",          {"process": "core"}, "its core is killed"),
    ("freeze",        {},                "freezes"),
    ("freeze",        {"process": "worker"}, "its worker freezes"),
    ("lie",           {"body": {}},      "answers what is not true"),
    ("gil",           {},                "holds the GIL"),
    ("lock",          {},                "waits for a leaked lock"),
    ("loop",          {},                "loops for ever"),
    ("swallow",       {},                "swallows an exception"),
]
INVALID = [
    ("status-too-low",  "reject",     {"status": 200}),
    ("status-text",     "reject",     {"status": "500"}),
    ("no-seconds",      "slow",       {}),
    ("negative",        "slow",       {"seconds": -1.0}),
    ("endless",         "slow",       {"seconds": float("inf")}),
    ("unknown-field",   "kill",       {"group": True}),
    ("no-such-process", "kill",       {"process": "rank"}),
    ("two-processes",   "freeze",     {"process": ["core", "worker"]}),
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


@pytest.mark.parametrize("kind", ["hang", "lock", "swallow"])
def test_a_thread_that_waits_for_ever(kind: str) -> None:
    """The thread does not come back, and holds up no other thread."""
    thread = threading.Thread(target=FAULTS[kind]().in_thread, args=({},), daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()


# What the main thread does while another is struck: with the GIL it says so ten times.
STRIKE = """
import asyncio, sys, threading, time
from harness.faults import FAULTS
fault = FAULTS[sys.argv[1]]()
class Never:
    async def hold(self):
        raise AssertionError("it does not hold the request: it holds the thread")
strikes = {
    "thread": lambda: fault.in_thread({}),
    "request": lambda: asyncio.run(fault.at_request(Never())),
}
print("begin", flush=True)
threading.Thread(target=strikes[sys.argv[2]], daemon=True).start()
for _ in range(10):
    time.sleep(0.01)
    print("alive", flush=True)
"""


@pytest.mark.parametrize("side", ["thread", "request"])
@pytest.mark.parametrize(("kind", "others_live"), [("gil", False), ("loop", True), ("lock", True)])
def test_a_thread_that_never_returns(kind: str, side: str, others_live: bool) -> None:
    """A loop and a leaked lock leave the other threads alone; who holds the GIL stops them all."""
    arguments = [sys.executable, "-c", STRIKE, kind, side]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begin\n"
            readable, _, _ = select.select([child.stdout], [], [], 30.0 if others_live else 0.3)
            assert bool(readable) == others_live
            if others_live:
                assert child.stdout.read() == b"alive\n" * 10
                assert child.wait(30) == 0
            assert others_live or child.poll() is None
        finally:
            child.kill()


def test_what_never_returns() -> None:
    """These kinds keep the thread that they strike for ever; the watch waits for it no longer."""
    kinds = {name for name, fault in FAULTS.items() if fault.never_returns}
    assert kinds == {"freeze", "gil", "hang", "lock", "loop", "swallow"}


def test_stale_engines() -> None:
    """The rank's list loses its last engine, in place."""
    told = [0, 1, 2]
    FAULTS["stale_engines"]().in_thread({"engines": told})
    assert told == [0, 1]


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


@pytest.mark.parametrize("call", ["()", "(process='worker')"])
def test_kill_in_a_thread(call: str) -> None:
    """A killed process dies of SIGKILL, and nobody else does."""
    code = (
        f"from harness.faults import FAULTS; FAULTS['kill']{call}.in_thread({{'worker': 0}}); "
        "print('alive')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_freeze_in_a_thread() -> None:
    """A frozen process stops before its next line, and is there still; continued, it goes on."""
    code = "from harness.faults import FAULTS; FAULTS['freeze']().in_thread({}); print('on')"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as child:
        try:
            pid, status = os.waitpid(child.pid, os.WUNTRACED)  # returns once it stops, or ends
            assert (pid, os.WIFSTOPPED(status)) == (child.pid, True)
            child.send_signal(signal.SIGCONT)
            assert child.communicate(timeout=30)[0] == b"on\n"
        finally:
            child.kill()


@pytest.mark.parametrize("kind", ["kill", "freeze"])
@pytest.mark.parametrize(
    ("process", "where"), [("core", {"worker": 1}), ("worker", {"tensor": "lm_head.weight"})]
)
def test_a_thread_strikes_no_other_process(kind: str, process: str, where: dict[str, Any]) -> None:
    """A worker or a rank cannot reach the other processes of an engine; the error says how."""
    with pytest.raises(InjectionError) as caught:
        FAULTS[kind](process=process).in_thread(where)
    assert str(caught.value) == (
        f"fault {kind}: expected no process, or the worker at a worker's point, since a thread "
        f"strikes its own; found {process!r}. Place the fault at a point of engine.*."
    )


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
