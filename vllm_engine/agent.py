"""The harness's ear and hand in one vLLM worker: its state and its faults, over a Unix socket.

A thread answers, so it does while the worker's own thread is blocked in a collective or in a fault.
It only reads what the worker holds. The protocol is JSON lines, one answer a request, on
``<agents_dir>/worker-<rank>.sock``:

=====================================================  ============================================
request                                                answer
=====================================================  ============================================
``{"cmd": "configure", "index", "who", "journal",      ``{"ok": true}``: a scenario begins, and the
"faults", "push", "rendezvous_s"?, "gpu_offset"?}``    one before it is forgotten
``{"cmd": "push", "n": 2}``                            ``{"ok": true}``: faults count afresh
``{"cmd": "disarm"}``                                  ``{"ok": true}``: nothing strikes any more
``{"cmd": "forget"}``                                  ``{"ok": true}``: the scenario is over
``{"cmd": "state"}``                                   `Agent.state`
anything else                                          ``{"ok": false, "error": "..."}``
=====================================================  ============================================
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.contracts import Json
from harness.injector import ScenarioInjector
from harness.journal import JournalWriter

RENDEZVOUS_S = 300.0  # vLLM's own limit, where no scenario sets one
READ_TRIES = 20  # of a model whose modules the worker's thread is changing
# The frame of vLLM's ``WorkerProc`` that runs one RPC, and the RPCs that are steps of generation.
RPC_FRAME = "_execute_worker_rpc"
GENERATION = frozenset({"execute_model", "sample_tokens", "execute_dummy_batch"})


class Scenario:
    """What one scenario has given this worker: its faults, its journal, its place in the fleet.

    Attributes:
        rendezvous_s: how long an init waits for the trainer, in seconds.
        gpu_offset: what worker 0 of this engine counts as among the GPUs of all engines.
    """

    def __init__(self, config: Mapping[str, Json]) -> None:
        self._journal = JournalWriter(Path(config["journal"]), config["who"])
        self._lock = threading.Lock()
        self._open = True
        self.rendezvous_s: float = config.get("rendezvous_s", RENDEZVOUS_S)
        self.gpu_offset: int = config.get("gpu_offset", 0)
        try:
            self.injector = ScenarioInjector(
                config["faults"],
                role="engine",
                index=config["index"],
                record=self.record,
                push=config["push"],
            )
        except BaseException:
            self._journal.close()
            raise

    def record(self, event: str, /, **fields: Json) -> None:
        """Append to the scenario's journal; nothing once the scenario is over.

        A thread that a fault has held up may come back in another scenario, whose journal must
        not hear of it.
        """
        with self._lock:
            if self._open:
                self._journal(event, **fields)

    def close(self) -> None:
        """End it: nothing strikes or is recorded any more. Idempotent."""
        self.injector.disarm()
        with self._lock:
            self._open = False
            self._journal.close()


class Agent:
    """Serves one worker's socket until the process ends; at most one a process.

    Args:
        worker: vLLM's ``Worker``, or what has its attributes.
        rank: the worker's rank within its engine.
        path: of the socket; made here, in an existing directory.
        count_armed: returns how many layers of a model wait for the rest of their weights.
    """

    def __init__(
        self,
        worker: Any,
        *,
        rank: int,
        path: Path,
        count_armed: Callable[[Any], int],
    ) -> None:
        self._worker = worker
        self.rank = rank
        self._count_armed = count_armed
        self._thread = threading.main_thread().ident  # where vLLM's workers run RPCs
        self.scenario: Scenario | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()

    def start(self) -> None:
        """Answer from now on, in threads that do not keep the process alive."""
        threading.Thread(target=self._accept, name="resync-chaos-agent", daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        # A thread that is blocked in accept() does not notice a mere close.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def follow(self, thread: int | None) -> None:
        """Take another thread, by its identifier, for the one that runs RPCs."""
        self._thread = thread

    def reach(self, point: str, /, **where: Json) -> None:
        """Let a fault of the scenario strike in this thread; see `harness.contracts.Injector`."""
        scenario = self.scenario
        if scenario is not None:
            scenario.injector.reach(point, worker=self.rank, **where)

    def record(self, event: str, /, **fields: Json) -> None:
        """Append one event to the scenario's journal; nothing between scenarios."""
        scenario = self.scenario
        if scenario is not None:
            scenario.record(event, **fields)

    def state(self) -> dict[str, Json]:
        """Return what the worker holds, whatever its own thread is doing.

        ``pid`` and ``rank``; ``active`` and ``is_draft``, its session flags; ``busy``, the RPC that
        its thread is in, or null (a step of generation is not one); ``armed``, the layers that wait
        for weights; ``on_meta``, the tensors without memory; ``initialised``, whether a channel
        is open; ``configured``, whether a scenario is.
        """
        worker, running = self._worker, self.running()
        model = worker.model_runner.get_model()
        return {
            "pid": os.getpid(),
            "rank": self.rank,
            "active": worker._weight_update_active,
            "is_draft": worker._weight_update_is_draft,
            "busy": None if running in GENERATION else running,
            "armed": _reading(lambda: self._count_armed(model)),
            "on_meta": _reading(lambda: _count_on_meta(model)),
            "initialised": getattr(worker.weight_transfer_engine, "initialised", False),
            "configured": self.scenario is not None,
        }

    def running(self) -> str | None:
        """Return the RPC that the worker's thread is in, generation included, or ``None``."""
        assert self._thread is not None
        frame = sys._current_frames().get(self._thread)
        while frame is not None and frame.f_code.co_name != RPC_FRAME:
            frame = frame.f_back
        if frame is None:
            return None
        method = frame.f_locals.get("method", "")
        return method if isinstance(method, str) else "a function"  # vLLM sends those pickled

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(
                target=self._serve, args=(connection,), name="resync-chaos-agent", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                answer = json.dumps(self._answer(line)).encode() + b"\n"
                try:
                    connection.sendall(answer)
                except OSError:  # whoever asked has gone
                    return

    def _answer(self, line: bytes) -> dict[str, Json]:
        try:
            request = json.loads(line)
            command = request["cmd"]
            if command == "state":
                return self.state()
            self._obey(command, request)
        except Exception as error:
            # The caller must hear of it, whatever it is, and the worker must not.
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}
        return {"ok": True}

    def _obey(self, command: str, request: Mapping[str, Json]) -> None:
        scenario = self.scenario
        if command in ("configure", "forget"):
            following = Scenario(request) if command == "configure" else None
            self.scenario = following
            if scenario is not None:
                scenario.close()
        elif command not in ("push", "disarm"):
            raise ValueError(
                f"cmd: expected one of configure, push, disarm, forget, state, found {command!r}."
            )
        elif scenario is None:
            raise ValueError(f"{command}: expected a scenario, found none. Send configure first.")
        elif command == "push":
            scenario.injector.begin_push(request["n"])
        else:
            scenario.injector.disarm()


def _reading(count: Callable[[], int]) -> int:
    """Return ``count()`` of something that another thread may be changing."""
    for _ in range(READ_TRIES - 1):
        try:
            return count()
        except RuntimeError:  # a dictionary changed its size while it was walked
            continue
    return count()


def _count_on_meta(model: Any) -> int:
    """Count buffers too: modules that hold nothing else come back only at the finish."""
    return sum(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


_agent: Agent | None = None


def install(agent: Agent) -> None:
    """Make ``agent`` this process's, and start it; whatever was there before is closed."""
    global _agent
    if _agent is not None:
        _agent.close()
    _agent = agent
    agent.start()


def current() -> Agent | None:
    """Return this process's agent; ``None`` outside a worker of the harness."""
    return _agent
