"""What the tests on real engines share: one launcher with vLLM imported, and its servers.

``nox -s real_engine`` runs them; a run of all of ``tests`` passes this folder by (pyproject.toml).
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.launcher import Launcher
from vllm_engine import server
from vllm_engine.pool import ServerPool

HERE = Path(__file__).parent
TEST_LIMIT_S = 300


if importlib.util.find_spec("vllm") is None:
    raise pytest.UsageError(
        "tests/real_engine: expected vLLM to be installed, found none. `nox -s real_engine` "
        "installs it and runs these tests."
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the first test the time that importing vLLM takes on a loaded machine."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.timeout(TEST_LIMIT_S))


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """The event loop that launcher and pool live on: ``runner.run(coroutine)``."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def launcher(runner: asyncio.Runner) -> Iterator[Launcher]:
    """A launcher whose zygote has imported vLLM, once for all tests: some 10 s."""
    launcher = Launcher(server.PRELOAD)
    runner.run(launcher.__aenter__())
    yield launcher
    runner.run(launcher.close())


@pytest.fixture(scope="session")
def pool(
    runner: asyncio.Runner, launcher: Launcher, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerPool]:
    """The servers: one of each topology serves all tests that leave it healthy."""
    pool = ServerPool(launcher, tmp_path_factory.mktemp("servers"))
    yield pool
    runner.run(pool.close())
