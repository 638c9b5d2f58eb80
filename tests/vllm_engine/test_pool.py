"""The pool of servers, with a stand-in server in real processes of the launcher."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from harness.engine_servers import EngineServerError
from harness.launcher import Launcher
from harness.processes import identify, state
from vllm_engine import pool as pool_module
from vllm_engine.pool import ServerPool, version_warning
from vllm_engine.server import CHECKED_VERSION, remove_shared_memory

pytestmark = pytest.mark.processes

ENTRIES = "tests.vllm_engine.stand_in_server"


def _silently(what: str) -> None:
    pass


def _run(
    test: Callable[[ServerPool], Awaitable[None]],
    log_dir: Path,
    entry: str = "healthy",
    **options: Any,
) -> None:
    """Run a test's body with a pool; afterwards nothing of its servers is left."""

    async def run() -> None:
        async with asyncio.timeout(60), Launcher([ENTRIES], libraries=()) as launcher:
            pool = ServerPool(launcher, log_dir, entry=f"{ENTRIES}:{entry}", **options)
            await test(pool)
            await pool.close()
            assert list(launcher.scratch.path.glob("vllm-*")) == []

    asyncio.run(run())


async def _become(server: dict[str, Any], *words: str) -> None:
    url = f"{server['url']}/become"
    async with aiohttp.ClientSession() as http, http.post(url, json=list(words)) as answer:
        assert answer.status == 200


def test_a_server_is_described(tmp_path: Path) -> None:
    """Whoever acquires one learns where everything is, and hears of the start meanwhile."""
    heard: list[str] = []

    async def test(pool: ServerPool) -> None:
        server = await pool.acquire(index=4, workers=2, doing=heard.append)
        assert sorted(server) == ["agents", "log_path", "pids", "url"]
        assert [Path(path).name for path in server["agents"]] == ["worker-0.sock", "worker-1.sock"]
        assert all(Path(path).is_socket() for path in server["agents"])
        assert identify(server["pids"]["server"]) is not None
        assert server["log_path"] == str(tmp_path / "vllm-0.log")
        async with aiohttp.ClientSession() as http, http.get(f"{server['url']}/health") as answer:
            assert answer.status == 200

    _run(test, tmp_path)
    assert heard == ["vllm:4: loading weights"]


def test_the_healthy_are_used_again(tmp_path: Path) -> None:
    """A released server serves the next scenario of its topology, one engine at a time."""

    async def test(pool: ServerPool) -> None:
        first = await pool.acquire(index=0, workers=1, doing=_silently)
        second = await pool.acquire(index=1, workers=1, doing=_silently)
        assert first["url"] != second["url"]
        await pool.release(first)
        other = await pool.acquire(index=0, workers=2, doing=_silently)
        assert other["url"] not in (first["url"], second["url"])
        assert await pool.acquire(index=0, workers=1, doing=_silently) == first

    _run(test, tmp_path)


def test_a_server_keeps_its_gpus(tmp_path: Path) -> None:
    """One that idles on other GPUs, or on none, is not what an engine asks for."""

    async def test(pool: ServerPool) -> None:
        first = await pool.acquire(index=0, workers=1, gpus=("0",), doing=_silently)
        await pool.release(first)
        urls = {first["url"]}
        for gpus in ((), ("1",)):
            other = await pool.acquire(index=0, workers=1, gpus=gpus, doing=_silently)
            urls.add(other["url"])
        assert len(urls) == 3
        assert await pool.acquire(index=0, workers=1, gpus=("0",), doing=_silently) == first

    _run(test, tmp_path)


@pytest.mark.parametrize("word", ["shifted", "busy", "sick"])
@pytest.mark.parametrize("when", ["before-release", "while-idle"])
def test_the_broken_are_ended(tmp_path: Path, word: str, when: str) -> None:
    """Shifted replies, a stuck worker or a dead core: the server is ended, and another started."""

    async def test(pool: ServerPool) -> None:
        server = await pool.acquire(index=0, workers=2, doing=_silently)
        if when == "before-release":
            await _become(server, word)
            await pool.release(server)
            assert state(server["pids"]["server"]) is None
        else:
            await pool.release(server)
            await _become(server, word)
        again = await pool.acquire(index=0, workers=2, doing=_silently)
        assert again["url"] != server["url"]
        assert state(server["pids"]["server"]) is None

    _run(test, tmp_path)


def test_the_discarded_are_ended(tmp_path: Path) -> None:
    """Discarding ends a server at once, whatever its health, and removes all that it kept."""

    async def test(pool: ServerPool) -> None:
        server = await pool.acquire(index=0, workers=1, doing=_silently)
        await pool.discard(server)
        assert state(server["pids"]["server"]) is None
        assert not Path(server["agents"][0]).exists()

    _run(test, tmp_path)


def test_a_server_is_taken_back_once(tmp_path: Path) -> None:
    """A server that was released or ended before is not given to two engines, and is no error."""

    async def test(pool: ServerPool) -> None:
        first = await pool.acquire(index=0, workers=1, doing=_silently)
        await pool.release(first)
        await pool.release(first)
        assert await pool.acquire(index=0, workers=1, doing=_silently) == first
        second = await pool.acquire(index=1, workers=1, doing=_silently)
        assert second["url"] != first["url"]
        await pool.release(second)
        await pool.discard(second)  # while it idles
        await pool.discard(second)
        await pool.release(second)
        third = await pool.acquire(index=1, workers=1, doing=_silently)
        assert third["url"] not in (first["url"], second["url"])

    _run(test, tmp_path)


def test_a_server_that_dies_on_the_way_up(tmp_path: Path) -> None:
    """The error has the command, the status, the end of the log and where the rest of it is."""

    async def test(pool: ServerPool) -> None:
        with pytest.raises(EngineServerError) as caught:
            await pool.acquire(index=1, workers=2, doing=_silently)
        first, command, third, *log = str(caught.value).splitlines()
        assert first == (
            "vllm:1: expected a healthy server within 120 s, found that it ended with status 3."
        )
        assert "VLLM_SERVER_DEV_MODE=1" in command
        assert "--tensor-parallel-size 2" in command
        assert third == f"The last 40 lines of {tmp_path / 'vllm-0.log'}:"
        assert log == [f"line {number}" for number in range(60, 100)]

    _run(test, tmp_path, "failing")


def test_a_server_that_never_comes_up(tmp_path: Path) -> None:
    """It is given up after the limit, and ended."""

    async def test(pool: ServerPool) -> None:
        with pytest.raises(EngineServerError, match="within 1 s, found that it is still starting"):
            await pool.acquire(index=0, workers=1, doing=_silently)

    _run(test, tmp_path, "silent", start_limit_s=1.0)


def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    """Whoever stops waiting for a server does not leave it behind."""

    async def test(pool: ServerPool) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await pool.acquire(index=0, workers=1, doing=_silently)

    _run(test, tmp_path, "silent")


# fmt: off
VERSIONS = [
    # installed            warned
    (None,                 False),
    (CHECKED_VERSION,      False),
    ("0.33.1",             True),
]
# fmt: on


@pytest.mark.parametrize(("installed", "warned"), VERSIONS)
def test_version_warning(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, warned: bool
) -> None:
    """Another vLLM than the checked one is named, with the session that checks it."""
    monkeypatch.setattr(pool_module, "installed_version", lambda: installed)
    expected = (
        f"vLLM {installed} is installed; the fake engine, the rule profiles and vllm_engine were "
        f"checked against {CHECKED_VERSION}. Run nox -s real_engine to see what differs."
    )
    assert version_warning() == (expected if warned else None)


def test_shared_memory_of_one_server(tmp_path: Path) -> None:
    """Only what is named after this server's rendezvous file is removed."""
    (tmp_path / "vllm_dist_abc").touch()
    own, other = (Path("/dev/shm") / f"vllm_dist_{name}-tp:0-[0-1]-cpushm_0" for name in "ax")
    own = own.with_name(own.name.replace("dist_a", "dist_abc"))
    try:
        own.touch()
        other.touch()
        remove_shared_memory(tmp_path)
        assert (own.exists(), other.exists()) == (False, True)
    finally:
        own.unlink(missing_ok=True)
        other.unlink(missing_ok=True)
