"""The zygote's preload, and what it makes of the processes that it forks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest

from harness.contracts import ProcessSpec
from harness.launcher import Launcher, LauncherError
from harness.processes import children_of, state

pytestmark = pytest.mark.processes

ENTRIES = "tests.harness.launcher_entries"


def _spec(name: str, entry: str, tmp_path: Path, **config: object) -> ProcessSpec:
    return ProcessSpec(
        name=name, entry=f"{ENTRIES}:{entry}", config=config, log_path=tmp_path / f"{name}.log"
    )


THREAD = "import threading as t\nt.Thread(target=t.Event().wait, daemon=True).start()"
EXIT = "import os\nos._exit(3)"

# fmt: off
PRELOADS = [
    # id         preload           source of the module         error
    ("missing",  "preloaded",      None,       "expected an importable module preloaded, found:\n"),
    ("raises",   "preloaded",      "raise OSError('broken')",   "OSError: broken"),
    ("thread",   "preloaded",      THREAD,     "one thread after importing preloaded, found 2"),
    ("exits",    "preloaded",      EXIT,       "it ended with status 3"),
    ("warm-up",  "preloaded:warm", "def warm():\n    raise OSError('cold')", "OSError: cold"),
    ("no-such",  "preloaded:warm", "",         "has no attribute 'warm'"),
]
# fmt: on


@pytest.mark.parametrize(
    ("preload", "source", "error"),
    [case[1:] for case in PRELOADS],
    ids=[case[0] for case in PRELOADS],
)
def test_a_preload_that_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    preload: str,
    source: str | None,
    error: str,
) -> None:
    """Entering the launcher says which module and why, and leaves nothing."""
    if source is not None:
        (tmp_path / "preloaded.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)

    async def enter() -> Launcher:
        launcher = Launcher([preload], libraries=())
        with pytest.raises(LauncherError) as caught:
            await launcher.__aenter__()
        assert error in str(caught.value)
        return launcher

    launcher = asyncio.run(enter())
    assert not launcher.scratch.path.exists()
    assert not os.path.exists(f"/proc/{launcher.zygote_pid}")


def test_child_is_isolated(tmp_path: Path) -> None:
    """A child has its own group and descriptors, and the settings of every scenario."""

    async def ask() -> None:
        async with Launcher([ENTRIES], libraries=()) as launcher:
            names = ["rank:0", "rank:1", "engine:0"]
            specs = [_spec(name, "descriptors", tmp_path) for name in names]
            sockets = {"engine:0": [launcher.listener()], "rank:1": [launcher.listener()]}
            children = await launcher.start(specs, sockets=sockets)
            for name, child in children.items():
                found = await child.receive(timeout_s=5)
                assert found["policy"] == os.SCHED_BATCH
                assert found["interface"] == "lo"
                assert found["group"] == child.pid
                links = found["links"]
                given = [links.pop(str(fd)) for fd in found["sockets"]]
                assert len(given) == len(sockets.get(name, []))
                assert links.pop("0") == "/dev/null"
                assert [links.pop(fd) for fd in "12"] == [str(tmp_path / f"{name}.log")] * 2
                stacks, channel = sorted(links.values())
                assert stacks == str(tmp_path / f"{name}.log.stacks")
                assert channel.startswith("socket:")
                assert await child.wait(timeout_s=5) == 0
            await launcher.end(children)

    asyncio.run(ask())


@pytest.mark.timeout(60)
def test_flight_recorder_works_behind_the_zygote(tmp_path: Path) -> None:
    """With torch preloaded, two children make a gloo group and its collectives are recorded."""

    async def reduce() -> None:
        async with Launcher([ENTRIES], libraries=("numpy", "torch.distributed")) as launcher:
            store = str(tmp_path / "store")
            children = await launcher.start(
                [
                    _spec(f"rank:{k}", "flight_recorder", tmp_path, rank=k, store=store)
                    for k in (0, 1)
                ]
            )
            for child in children.values():
                dump = json.loads(await child.receive(timeout_s=20))
                assert [e["profiling_name"] for e in dump["entries"]] == ["gloo:all_reduce"]
            await launcher.end(children)

    asyncio.run(reduce())


def test_a_fork_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few processes are none: those forked before are killed, and the launcher goes on."""
    (tmp_path / "third_fork_fails.py").write_text(
        "import itertools, os\n"
        "calls, fork = itertools.count(1), os.fork\n"
        "def limited():\n"
        "    if next(calls) == 3:\n"
        "        raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "    return fork()\n"
        "os.fork = limited\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    async def start() -> None:
        async with Launcher([ENTRIES, "third_fork_fails"], libraries=()) as launcher:
            specs = [_spec(f"rank:{k}", "echo", tmp_path) for k in range(4)]
            listener = launcher.listener()
            with pytest.raises(LauncherError) as caught:
                await launcher.start(specs, sockets={"rank:3": [listener]})
            assert str(caught.value).startswith(
                "launcher: expected to fork rank:0, rank:1, rank:2, rank:3, found: [Errno 11] "
                "Resource temporarily unavailable, after 2 of 4 processes. The end of "
            )
            assert listener.fileno() == -1
            children = await launcher.start(specs)
            assert sorted(children_of(launcher.zygote_pid)) == sorted(
                child.pid for child in children.values()
            )
            assert await launcher.end(children) == dict.fromkeys(children)

    asyncio.run(start())


def test_zygote_killed(tmp_path: Path) -> None:
    """Children and grandchildren die with the zygote, and everybody who waits is told."""

    async def kill() -> list[int]:
        async with Launcher([ENTRIES], libraries=()) as launcher:
            children = await launcher.start([_spec("rank:0", "parent", tmp_path)])
            grandchildren = await children["rank:0"].receive(timeout_s=5)
            started = time.monotonic()
            os.kill(launcher.zygote_pid, signal.SIGKILL)
            expected = "launcher: expected a living zygote, found: it ended with status -9. "
            with pytest.raises(LauncherError, match=expected):
                await children["rank:0"].wait(timeout_s=5)
            with pytest.raises(LauncherError, match=expected):
                await launcher.start([_spec("rank:1", "echo", tmp_path)])
            assert await children["rank:0"].receive(timeout_s=5) is None
            assert await launcher.end(children) == {"rank:0": None}
            assert time.monotonic() - started < 2
            return [children["rank:0"].pid, *grandchildren]

    for pid in asyncio.run(kill()):
        assert state(pid) in (None, "Z")
