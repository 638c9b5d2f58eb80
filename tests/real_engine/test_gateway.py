"""The gateway in front of a real server: pushes, what is served meanwhile, and process faults."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_server import LIMIT_S, LiveServer, Source, fault

from fakes.model_spec import TINY_LLAMA, expected_checksums, fingerprint
from fakes.send_loops import ChannelSettings, open_channel
from harness.child import Child
from harness.contracts import NoFaults, ProcessSpec, no_record
from harness.journal import read_journal
from harness.launcher import Launcher
from harness.processes import state as process_state
from vllm_engine.known_weights import UNMATCHED
from vllm_engine.pool import ServerPool

SEED = 11  # of `live_server`
START_LIMIT_S = 60.0


def _name(step: int, workers: int) -> str:
    return fingerprint(expected_checksums(SEED, step, workers, shape=TINY_LLAMA))


class Front:
    """A gateway, and the server behind it."""

    def __init__(
        self, runner: asyncio.Runner, child: Child, server: dict[str, Any], url: str, folder: Path
    ) -> None:
        self.child, self.server, self.url, self.journal = child, server, url, folder / "journal"
        self.live = LiveServer(server | {"url": url}, runner, folder)
        self._runner = runner

    def tell(self, **message: Any) -> None:
        async def tell() -> Any:
            await self.child.send(message)
            return await self.child.receive(LIMIT_S)

        assert self._runner.run(tell()) == {"ok": True, "cmd": message["cmd"]}

    def state(self) -> Any:
        return httpx.get(f"{self.url}/harness/state", timeout=LIMIT_S).json()

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in read_journal(self.journal) if event["event"] == kind]

    def tokens(self) -> list[tuple[str, str]]:
        return [(e["fingerprint"], e["version"]) for e in self.events("token")]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end_s, self.tokens()[-5:]
            time.sleep(0.02)  # another process's doing: there is no event to wait for

    def push(self, step: int, transport: str, *, packed: bool, tensors: int | None = None) -> None:
        """Push as a trainer does; ``tensors`` cuts the pass short."""
        self.tell(cmd="push", n=step)
        assert self.live.post("/pause?mode=keep")[0] == 200
        source = Source(step)
        source._tensors = dict(list(source._tensors.items())[:tensors])
        settings = ChannelSettings(
            transport=transport,
            packed=packed,
            rank=0,
            total_workers=self.live.workers,
            rendezvous_s=LIMIT_S,
            scratch_dir=self.journal.parent,
            injector=NoFaults(),
            record=no_record,
            buffer_bytes=72 * 1024,
        )
        channel = open_channel(settings, self.live, source)
        try:
            channel.send_weights()
        finally:
            channel.shutdown()
        assert self.live.post("/update_weight_version", {"new_version": str(step)})[0] == 200
        assert self.live.post("/resume")[0] == 200


@pytest.fixture
def memory(launcher: Launcher) -> Iterator[Path]:
    """A directory on ``/dev/shm``."""
    directory = launcher.scratch.subdirectory("gateway")
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def front(
    runner: asyncio.Runner, launcher: Launcher, pool: ServerPool, memory: Path, tmp_path: Path
) -> Iterator[Callable[..., Front]]:
    """Return a gateway in front of a server of the given topology, ready for a scenario."""
    fronts: list[Front] = []

    def start(workers: int, backend: str, *faults: dict[str, Any]) -> Front:
        server = runner.run(pool.acquire(index=0, workers=workers, doing=print))
        config = {
            "index": 0,
            "workers": workers,
            "gpu_offset": 0,
            "seed": SEED,
            "backend": backend,
            "rendezvous_s": LIMIT_S,
            "journal": str(memory / "journal"),
            "faults": list(faults),
            "server": server,
        }
        log_path = tmp_path / f"gateway-{len(fronts)}.log"
        spec = ProcessSpec(
            name="engine:0", entry="vllm_engine.gateway:main", config=config, log_path=log_path
        )

        async def launch() -> tuple[Child, int]:
            listener = launcher.listener()
            port = listener.getsockname()[1]
            child = (await launcher.start([spec], sockets={"engine:0": [listener]}))["engine:0"]
            assert await child.receive(START_LIMIT_S) == {"ready": True}, child.log_tail()
            return child, port

        child, port = runner.run(launch())
        fronts.append(Front(runner, child, server, f"http://127.0.0.1:{port}", memory))
        return fronts[-1]

    yield start
    for each in fronts:
        each.live.close()
        runner.run(launcher.end([each.child]))
        runner.run(pool.release(each.server))


@pytest.mark.parametrize(
    ("workers", "transport", "packed"), [(1, "nccl", False), (2, "ipc", True)], ids=["tp1", "tp2"]
)
def test_pushes(front: Callable[..., Front], workers: int, transport: str, packed: bool) -> None:
    """Every token that the engine serves while weights are pushed carries weights and label of one
    push; and the state names the weights."""
    gateway = front(workers, transport)
    fresh = (_name(0, workers), "default")
    gateway.wait_for(lambda: fresh in gateway.tokens())
    for step in (1, 2):
        gateway.push(step, transport, packed=packed)
        gateway.wait_for(lambda step=step: (_name(step, workers), str(step)) in gateway.tokens())
        begun_s = time.monotonic()
        state = gateway.state()
        assert time.monotonic() - begun_s < 2.0
        assert (state["version"], state["paused"], state["dead"]) == (str(step), False, False)
        assert state["checksums"] == expected_checksums(SEED, step, workers, shape=TINY_LLAMA)
        assert [(w["active"], w["busy"]) for w in state["workers"]] == [(False, None)] * workers
    known = [fresh, *((_name(step, workers), str(step)) for step in (1, 2))]
    tokens = gateway.tokens()
    assert set(tokens) == set(known)
    assert tokens == sorted(tokens, key=known.index)
    assert [event["version"] for event in gateway.events("version")] == ["1", "2"]


def test_torn_weights(front: Callable[..., Front]) -> None:
    """A push that leaves tensors out, committed and published, is served, and matches no step."""
    gateway = front(1, "ipc")
    gateway.push(1, "ipc", packed=False, tensors=5)
    gateway.wait_for(lambda: (fingerprint(UNMATCHED), "1") in gateway.tokens())
    assert gateway.state()["checksums"] == UNMATCHED


def test_a_stuck_worker(front: Callable[..., Front]) -> None:
    """While a worker hangs in a start the state says so, with what was seen last."""
    gateway = front(2, "ipc", fault("hang", "worker.start", where={"worker": 1}))
    assert gateway.live.post("/pause?mode=keep")[0] == 200
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{gateway.url}/start_weight_update", timeout=1.0)
    begun_s = time.monotonic()
    state = gateway.state()
    assert time.monotonic() - begun_s < 2.0
    assert [worker["busy"] for worker in state["workers"]] == [None, "start_weight_update"]
    assert (state["version"], state["paused"], state["dead"]) == ("default", True, False)
    assert state["in_flight"] == ["engine.start"]


def test_a_frozen_worker(front: Callable[..., Front]) -> None:
    """A stopped worker takes neither gateway nor server down; the state names it in time."""
    gateway = front(2, "ipc", fault("freeze", "engine.start", options={"process": "worker"}))
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{gateway.url}/start_weight_update", timeout=1.0)
    assert process_state(gateway.server["pids"]["workers"][0]) == "T"
    begun_s = time.monotonic()
    state = gateway.state()
    assert time.monotonic() - begun_s < 5.0
    assert [worker["busy"] for worker in state["workers"]] == ["frozen: workers"] * 2
    gateway.tell(cmd="disarm")


def test_a_killed_core(front: Callable[..., Front]) -> None:
    """A killed core is a dead engine at once. The server outlives it: it waits, for ever, for the
    call that was on its way into the core."""
    gateway = front(1, "nccl", fault("kill", "engine.flush", options={"process": "core"}))
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{gateway.url}/reset_prefix_cache", timeout=1.0)
    assert gateway.state()["dead"] is True
    assert process_state(gateway.server["pids"]["core"]) in (None, "Z")
    assert process_state(gateway.server["pids"]["server"]) == "S"


def test_a_killed_engine(front: Callable[..., Front], runner: asyncio.Runner) -> None:
    """A kill of the engine takes every process of the server along, and the gateway."""
    gateway = front(1, "nccl", fault("kill", "engine.flush"))
    with pytest.raises(httpx.TransportError):
        httpx.post(f"{gateway.url}/reset_prefix_cache", timeout=LIMIT_S)
    assert runner.run(gateway.child.wait(LIMIT_S)) == -signal.SIGKILL
    pids = gateway.server["pids"]
    for pid in (pids["server"], pids["core"], *pids["workers"]):
        gateway.wait_for(lambda pid=pid: process_state(pid) in (None, "Z"))
