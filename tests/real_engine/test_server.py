"""The real server: how it starts, what it serves after a push, its faults, and its end."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_server import SEED, LiveServer, Refused, fault, tensors
from safetensors.torch import save_file

from fakes.model_spec import TINY_LLAMA, source_tensors
from harness.child import Child
from harness.contracts import ProcessSpec
from harness.engine_servers import EngineServerError
from harness.launcher import Launcher
from harness.processes import mark_of, state
from tests.vllm_engine.test_plugin import install_metadata
from vllm_engine.pool import ServerPool
from vllm_engine.tiny_model import write_model

NAMES = [tensor.name for tensor in source_tensors(shape=TINY_LLAMA)]
END_LIMIT_S = 30.0  # vLLM looks every 5 s whether its core lives
FAILED = (
    "Call to collective_rpc method failed: Worker failed with error 'injected failure', "
    "please check the stack trace above for the root cause"
)
TRANSPORTS = [("nccl", False), ("nccl", True), ("ipc", False), ("ipc", True)]
TRANSPORT_IDS = ["nccl", "nccl-packed", "ipc", "ipc-packed"]


@pytest.fixture
def memory(launcher: Launcher) -> Iterator[Path]:
    """A directory on ``/dev/shm``, in which nothing must be left."""
    directory = launcher.scratch.subdirectory("test")
    yield directory
    assert [path.name for path in directory.glob("ipc-*")] == []
    shutil.rmtree(directory)


@pytest.fixture
def serve(
    runner: asyncio.Runner, pool: ServerPool, memory: Path
) -> Iterator[Callable[[int], LiveServer]]:
    """Return a server of the given topology; it goes back to the pool at the end of the test."""
    acquired: list[LiveServer] = []

    def one(workers: int) -> LiveServer:
        server = runner.run(pool.acquire(index=0, workers=workers, doing=print))
        live = LiveServer(server, runner, memory)
        acquired.append(live)
        live.reset()
        return live

    yield one
    for live in acquired:
        live.close()
        runner.run(pool.release(live.server))


def _all_pids(live: LiveServer) -> list[int]:
    return [live.pids["server"], live.pids["core"], *live.pids["workers"]]


def _wait_until(condition: Callable[[], bool], limit_s: float = END_LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # another process's state: there is no event to wait for


@pytest.mark.parametrize("workers", [1, 2])
def test_its_processes_are_the_launchers(serve: Callable[[int], LiveServer], workers: int) -> None:
    """Server, core and workers are in one process group and carry one mark: they end together."""
    live = serve(workers)
    pids = _all_pids(live)
    assert len(set(pids)) == 2 + workers
    assert {os.getpgid(pid) for pid in pids} == {live.pids["server"]}
    marks = {mark_of(pid) for pid in pids}
    assert len(marks) == 1
    assert None not in marks
    assert [each["pid"] for each in live.states()] == live.pids["workers"]


def test_nothing_is_left_of_it(
    runner: asyncio.Runner, pool: ServerPool, memory: Path, launcher: Launcher
) -> None:
    """Discarded after some work it leaves no process and no file, in memory or elsewhere."""
    before = set(os.listdir("/dev/shm")) | set(os.listdir(launcher.scratch.path))
    server = runner.run(pool.acquire(index=0, workers=2, doing=print))
    live = LiveServer(server, runner, memory)
    live.reset()
    assert live.step() == 0
    pids = _all_pids(live)
    runner.run(pool.discard(server))
    live.close()
    assert [state(pid) for pid in pids] == [None] * 4
    left = set(os.listdir("/dev/shm")) | set(os.listdir(launcher.scratch.path))
    own = ("psm_", "sem.", "vllm")
    assert [name for name in left - before if name.startswith(own)] == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_reset_serves_as_a_fresh_start(
    serve: Callable[[int], LiveServer],
    runner: asyncio.Runner,
    launcher: Launcher,
    tmp_path: Path,
    memory: Path,
    workers: int,
) -> None:
    """After a reset the very same numbers are served as by a server started on these weights.

    And that server ends with its core, with a status that says so.
    """
    write_model(tmp_path / "model")
    weights = dict(tensors(SEED, 0))
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    child, url, pids = _start(runner, launcher, tmp_path, memory, workers)
    try:
        agents = [str(memory / f"worker-{rank}.sock") for rank in range(workers)]
        fresh = LiveServer({"url": url, "agents": agents, "pids": pids}, runner, memory)
        served = fresh.served().served
        fresh.close()
        live = serve(workers)
        live.reset(seed=SEED + 1)
        assert live.served().served != served
        live.reset()
        assert live.served().served == served
        os.kill(pids["core"], 9)
        assert runner.run(child.wait(END_LIMIT_S)) == 1
        assert "The engine core has died." in child.log_tail()
    finally:
        runner.run(launcher.end([child]))


def _start(
    runner: asyncio.Runner, launcher: Launcher, tmp_path: Path, memory: Path, workers: int
) -> tuple[Child, str, dict[str, int]]:
    """Start a server on the weights in ``tmp_path``; return its process, URL and process ids."""
    config = {
        "workers": workers,
        "model_dir": str(tmp_path / "model"),
        "agents_dir": str(memory),
        "scratch": str(memory),
        "seed": 0,
        "load_format": "safetensors",
    }

    async def start() -> tuple[Child, str, dict[str, int]]:
        listener = launcher.listener()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        spec = ProcessSpec(
            name="fresh",
            entry="vllm_engine.server:main",
            config=config,
            log_path=tmp_path / "fresh.log",
        )
        child = (await launcher.start([spec], sockets={"fresh": [listener]}))["fresh"]
        heard = []
        while "ready" not in (message := await child.receive(120) or {"ready": True, "pids": {}}):
            heard.append(message["progress"])
        assert heard == [
            "reading the configuration",
            "starting the engine core and its workers",
            "loading weights",
        ], child.log_tail()
        return child, url, message["pids"]

    return runner.run(start())


@pytest.mark.parametrize(("transport", "packed"), TRANSPORTS, ids=TRANSPORT_IDS)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_push_is_served(
    serve: Callable[[int], LiveServer], workers: int, transport: str, packed: bool
) -> None:
    """What a trainer sends is what is served, by the reference model; twice, and then reset."""
    live = serve(workers)
    live.reset(transport)
    for step in (1, 2):
        live.push(step, transport, packed=packed)
        assert live.step() == step
        for each in live.states():
            found = {key: each[key] for key in ("active", "busy", "armed", "on_meta")}
            assert found == {"active": False, "busy": None, "armed": 0, "on_meta": 0}
            assert each["initialised"]
    live.reset(transport)
    assert live.step() == 0
    assert not any(each["initialised"] for each in live.states())


@pytest.mark.parametrize(("transport", "packed"), TRANSPORTS, ids=TRANSPORT_IDS)
def test_fault_points_are_visited_as_in_the_fake(
    serve: Callable[[int], LiveServer], transport: str, packed: bool
) -> None:
    """Each worker passes init, start, then receive and load of every tensor in turn, and finish."""
    live = serve(2)
    live.reset(transport)
    points = ["init", "start", "receive", "load", "finish"]
    slow = [
        fault("slow", f"worker.{point}", fault=number, nth="always", options={"seconds": 1e-6})
        for number, point in enumerate(points)
    ]
    live.configure(*slow)
    live.push(1, transport, packed=packed)
    tensor_points = [(f"worker.{p}", name) for name in NAMES for p in ("receive", "load")]
    expected = [("worker.init", None), ("worker.start", None), *tensor_points]
    for rank in range(2):
        found = [(at, tensor) for at, worker, tensor in live.struck() if worker == rank]
        assert found == [*expected, ("worker.finish", None)]
    live.tell("forget")


# fmt: off
RAISES = [
    # point             where                          that worker's session flag, and armed layers
    ("worker.init",     {},                            False, False),
    ("worker.start",    {},                            False, False),
    ("worker.receive",  {"tensor": NAMES[4]},          False, True),
    ("worker.load",     {"tensor": NAMES[4]},          False, True),
    ("worker.finish",   {},                            True,  True),
]
# fmt: on


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("at", "where", "active", "armed"), RAISES, ids=[c[0] for c in RAISES])
def test_a_worker_raises(
    serve: Callable[[int], LiveServer],
    workers: int,
    at: str,
    where: dict[str, str],
    active: bool,
    armed: bool,
) -> None:
    """The last worker fails where it was told to; vLLM answers 500, and a reset makes it good."""
    live = serve(workers)
    live.reset("ipc")
    last = workers - 1
    live.configure(fault("raise", at, where={"worker": last} | where))
    with pytest.raises(Refused) as refused:
        live.push(1, "ipc", packed=False)
    assert str(refused.value) == FAILED
    assert live.struck() == [(at, last, where.get("tensor"))]
    found = live.states()[last]
    assert (found["active"], found["armed"] > 0) == (active, armed)
    live.tell("forget")
    live.reset("ipc")
    found = live.states()[last]
    assert (found["active"], found["armed"], found["on_meta"]) == (False, 0, 0)
    assert live.step() == 0
    live.push(2, "ipc", packed=True)
    assert live.step() == 2


def test_a_rendezvous_is_bounded(serve: Callable[[int], LiveServer]) -> None:
    """A trainer that is not there costs the scenario's time-out, not vLLM's 300 s."""
    live = serve(1)
    live.configure(rendezvous_s=0.2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    info = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2}
    status, text = live.post("/init_weight_transfer_engine", {"init_info": info})
    assert status == 500
    assert f"timed out after 200ms while trying to connect to (127.0.0.1, {port})" in text
    assert not live.states()[0]["initialised"]
    live.tell("forget")


def test_a_worker_finds_its_own_handle(serve: Callable[[int], LiveServer]) -> None:
    """Worker 0 of the second engine looks for its own GPU's; without it the words are vLLM's."""
    live = serve(1)
    live.reset("ipc")
    live.configure(gpu_offset=1)
    for packed in (False, True):
        with pytest.raises(Refused) as refused:
            live.push(1, "ipc", packed=packed)
        words = "'IPC handle not found for GPU UUID GPU-1. Available UUIDs: ['GPU-0']'"
        assert words in str(refused.value)
        live.reset("ipc")
    live.configure(gpu_offset=0)
    live.push(1, "ipc", packed=True)
    assert live.step() == 1
    live.tell("forget")


def test_a_worker_that_hangs(
    serve: Callable[[int], LiveServer], runner: asyncio.Runner, pool: ServerPool
) -> None:
    """Its agent says where it is stuck, while the server says that all is well; it is not kept."""
    live = serve(1)
    live.reset("ipc")
    live.configure(fault("hang", "worker.finish"))

    def push() -> None:
        with pytest.raises(Exception):  # noqa: B017, PT011 - the connection breaks when it is ended
            live.push(1, "ipc", packed=False)

    pushing = threading.Thread(target=push)
    pushing.start()
    _wait_until(lambda: live.states()[0]["busy"] == "finish_weight_update")
    assert live.struck() == [("worker.finish", 0, None)]
    assert live.http.get("/health").status_code == 200
    pids = _all_pids(live)
    runner.run(pool.release(live.server))
    assert [state(pid) for pid in pids] == [None] * 3
    pushing.join(END_LIMIT_S)
    assert not pushing.is_alive()


def test_a_worker_that_is_killed(serve: Callable[[int], LiveServer]) -> None:
    """vLLM's core goes with its worker, and its server with the core."""
    live = serve(1)
    live.reset("ipc")
    live.configure(fault("kill", "worker.start"))
    assert live.post("/start_weight_update")[0] == 500
    _wait_until(lambda: all(state(pid) is None for pid in _all_pids(live)))


def test_shifted_replies_end_a_server(
    serve: Callable[[int], LiveServer], runner: asyncio.Runner, pool: ServerPool
) -> None:
    """After a failed call the second worker's replies are late for ever; the pool notices."""
    for workers, kept in ((1, True), (2, False)):
        live = serve(workers)
        assert live.post("/finish_weight_update")[0] == 500
        runner.run(pool.release(live.server))
        following = serve(workers)
        assert (following.url == live.url) == kept


def test_a_topology_that_vllm_refuses(runner: asyncio.Runner, pool: ServerPool) -> None:
    """The error of a server that does not come up has vLLM's own reason in the end of its log."""
    with pytest.raises(EngineServerError) as caught:
        runner.run(pool.acquire(index=3, workers=3, doing=print))
    text = str(caught.value)
    assert text.startswith("vllm:3: expected a healthy server within 120 s, found that it ended")
    assert "--tensor-parallel-size 3" in text
    assert "must be divisible by tensor parallel size (3)" in text


def test_vllm_finds_the_installed_plugin(
    runner: asyncio.Runner, launcher: Launcher, tmp_path: Path
) -> None:
    """vLLM's own loader registers our backends by the entry point alone, if the harness asks."""
    config = {"installed": str(install_metadata(tmp_path))}
    entry = "tests.real_engine.plugin_entry:main"
    spec = ProcessSpec(name="vllm", entry=entry, config=config, log_path=tmp_path / "log")

    async def ask() -> object:
        children = await launcher.start([spec])
        try:
            return await children["vllm"].receive(END_LIMIT_S)
        finally:
            await launcher.end(children)

    assert runner.run(ask()) == {
        "without": [],
        "with": ["cuda_ipc", "cuda_nccl", "gloo", "shared_memory"],
    }
