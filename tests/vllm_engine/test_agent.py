"""The agent in a worker: its answers over the socket, and the faults that it is given."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_in_server import StandInWorker

from harness.journal import read_journal
from vllm_engine.agent import RENDEZVOUS_S, Agent

LIMIT_S = 10.0


class Wire:
    """One connection to an agent."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(str(path))
        self._lines = self.socket.makefile("rb")

    def send(self, line: bytes) -> dict[str, Any]:
        self.socket.sendall(line + b"\n")
        answer: dict[str, Any] = json.loads(self._lines.readline())
        return answer

    def ask(self, cmd: str, **fields: Any) -> dict[str, Any]:
        return self.send(json.dumps({"cmd": cmd} | fields).encode())

    def close(self) -> None:
        self._lines.close()
        self.socket.close()


class Rig:
    """A worker, its agent and a connection to it."""

    def __init__(self, directory: Path) -> None:
        self.worker = StandInWorker()
        self.path = directory / "worker-1.sock"
        self.agent = Agent(self.worker, rank=1, path=self.path, count_armed=lambda model: 3)
        self.agent.start()
        self.wire = Wire(self.path)
        self.journal = directory / "journal.jsonl"

    def configure(self, *faults: dict[str, Any], **fields: Any) -> dict[str, Any]:
        config = {"index": 0, "who": "engine:0", "journal": str(self.journal), "push": 0}
        return self.wire.ask("configure", **config | {"faults": list(faults)} | fields)

    def events(self) -> list[tuple[str, str, Any]]:
        return [(e["who"], e["event"], e.get("at")) for e in read_journal(self.journal)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.worker.leave.set()
    rig.wire.close()
    rig.agent.close()


def _fault(at: str, kind: str = "raise", **fields: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"fault": 0, "kind": kind, "at": at, "index": 0, "push": 0, "nth": [1]}
    return base | {"where": {}, "options": {}} | fields


def test_state(rig: Rig) -> None:
    """It tells what the worker object holds at this moment."""
    expected = {
        "pid": os.getpid(),
        "rank": 1,
        "active": False,
        "is_draft": False,
        "busy": None,
        "armed": 3,
        "on_meta": 1,
        "initialised": False,
        "configured": False,
    }
    assert rig.wire.ask("state") == expected
    rig.worker._weight_update_active = rig.worker._weight_update_is_draft = True
    rig.worker.weight_transfer_engine.initialised = True
    rig.worker.parameters.pop()
    rig.configure()
    changed = {"active": True, "is_draft": True, "initialised": True, "on_meta": 0}
    assert rig.wire.ask("state") == expected | changed | {"configured": True}
    rig.worker.buffers[0].is_meta = True  # a rotary embedding, which has no parameters
    assert rig.wire.ask("state")["on_meta"] == 1


def test_without_a_transfer_engine(rig: Rig) -> None:
    """A server without weight transfer has no engine, and no channel."""
    rig.worker.weight_transfer_engine = None  # type: ignore[assignment]
    assert rig.wire.ask("state")["initialised"] is False


# fmt: off
RPCS = [
    # RPC that the worker's thread is in    what the agent calls it
    ("update_weights",                      "update_weights"),
    ("finish_weight_update",                "finish_weight_update"),
    ("execute_model",                       None),  # generation: not a call of the push
    ("sample_tokens",                       None),
]
# fmt: on


@pytest.mark.parametrize(("method", "busy"), RPCS)
def test_busy(rig: Rig, method: str, busy: str | None) -> None:
    """It names the RPC that the worker's own thread is blocked in, and no step of generation."""
    thread = rig.worker.run(method)
    assert thread.ident is not None
    rig.agent.follow(thread.ident)
    assert rig.wire.ask("state")["busy"] == busy
    assert rig.agent.running() == method
    rig.worker.leave.set()
    thread.join(LIMIT_S)
    assert rig.wire.ask("state")["busy"] is None


def test_a_fault_strikes_and_is_recorded(rig: Rig) -> None:
    """A point raises in the thread that reaches it, at the nth visit, and the journal has it."""
    fault = _fault("worker.load", nth=[2], where={"worker": 1}, options={"message": "as asked"})
    assert rig.configure(fault) == {"ok": True}
    rig.agent.reach("worker.load", session="target", tensor="a")
    with pytest.raises(RuntimeError, match=r"^as asked$"):
        rig.agent.reach("worker.load", session="target", tensor="b")
    rig.agent.reach("worker.load", session="target", tensor="c")
    assert rig.events() == [("engine:0", "fault", "worker.load")]
    (event,) = read_journal(rig.journal)
    assert event["where"] == {"worker": 1, "session": "target", "tensor": "b"}


def test_answers_while_a_fault_holds_the_worker(rig: Rig) -> None:
    """A hanging worker is seen in its RPC, by connections old and new."""
    rig.configure(_fault("worker.finish", kind="hang"))

    def _execute_worker_rpc(method: str) -> None:
        rig.agent.reach("worker.finish", session="target")

    thread = threading.Thread(target=_execute_worker_rpc, args=("finish",), daemon=True)
    thread.start()
    assert thread.ident is not None
    rig.agent.follow(thread.ident)
    other = Wire(rig.path)
    for wire in (rig.wire, other):
        assert wire.ask("state")["busy"] == "finish"
    other.close()


def test_pushes_disarm_and_forget(rig: Rig) -> None:
    """A fault of push 2 strikes in push 2 alone, and never after disarm or forget."""
    fault = _fault("worker.start", push=2, nth="always")

    def strikes() -> bool:
        try:
            rig.agent.reach("worker.start", session="target")
        except RuntimeError:
            return True
        return False

    rig.configure(fault)
    assert not strikes()
    assert rig.wire.ask("push", n=2) == {"ok": True}
    assert strikes()
    assert rig.wire.ask("disarm") == {"ok": True}
    assert not strikes()
    rig.configure(fault, push=2)
    assert strikes()
    assert rig.wire.ask("forget") == {"ok": True}
    assert not strikes()
    assert not rig.wire.ask("state")["configured"]
    assert rig.wire.ask("forget") == {"ok": True}  # twice is fine


def test_a_late_thread_does_not_write_into_the_next_scenario(rig: Rig, tmp_path: Path) -> None:
    """What comes back after its scenario is over finds no journal, and no error either."""
    rig.configure()
    late = rig.agent.scenario
    assert late is not None
    late.record("data_plane", phase="begin")
    next_journal = tmp_path / "next.jsonl"
    rig.configure(journal=str(next_journal), index=3, who="engine:3")
    late.record("data_plane", phase="end")
    rig.agent.record("data_plane", phase="begin")
    assert rig.events() == [("engine:0", "data_plane", None)]
    assert [event["who"] for event in read_journal(next_journal)] == ["engine:3"]


def test_what_a_scenario_sets(rig: Rig) -> None:
    """Rendezvous time-out and place in the fleet are the scenario's, or vLLM's and the first."""
    rig.configure()
    assert rig.agent.scenario is not None
    assert (rig.agent.scenario.rendezvous_s, rig.agent.scenario.gpu_offset) == (RENDEZVOUS_S, 0)
    rig.configure(rendezvous_s=2.5, gpu_offset=4)
    assert (rig.agent.scenario.rendezvous_s, rig.agent.scenario.gpu_offset) == (2.5, 4)


CONFIGURE = b'{"cmd": "configure", "who": "e", "journal": "/none/j"}'
# fmt: off
REFUSED = [
    # id         line                        error
    ("no-json",  b"hello",                   "JSONDecodeError: Expecting value: "
                                             "line 1 column 1 (char 0)"),
    ("no-cmd",   b"{}",                      "KeyError: 'cmd'"),
    ("unknown",  b'{"cmd": "dance"}',        "ValueError: cmd: expected one of configure, push, "
                                             "disarm, forget, state, found 'dance'."),
    ("too-soon", b'{"cmd": "push", "n": 1}', "ValueError: push: expected a scenario, found none. "
                                             "Send configure first."),
    ("no-file",  CONFIGURE,                  "FileNotFoundError: [Errno 2] No such file or "
                                             "directory: '/none/j'"),
]
# fmt: on


@pytest.mark.parametrize(("line", "error"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_refused(rig: Rig, line: bytes, error: str) -> None:
    """What it cannot do is answered, and the connection goes on."""
    assert rig.wire.send(line) == {"ok": False, "error": error}
    assert rig.wire.ask("state")["rank"] == 1


def test_a_scenario_that_is_refused_leaves_the_one_before(rig: Rig) -> None:
    """Faults for another engine are refused whole."""
    rig.configure(_fault("worker.start"))
    answer = rig.configure(_fault("worker.start", index=7))
    assert answer["error"].startswith("InjectionError: fault 0: expected one for engine 0, found")
    with pytest.raises(RuntimeError, match=r"^injected failure$"):
        rig.agent.reach("worker.start", session="target")


def test_does_not_keep_the_process_alive(rig: Rig) -> None:
    """Its threads are daemons, those of open connections included."""
    rig.wire.ask("state")
    threads = [t for t in threading.enumerate() if t.name == "resync-chaos-agent"]
    assert threads
    assert all(thread.daemon for thread in threads)
