"""The launcher with real processes: how they end, what they leave, and what they cost."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from harness.contracts import ProcessSpec
from harness.launcher import Launcher, leftovers
from harness.processes import identify, state

pytestmark = pytest.mark.processes

ENTRIES = "tests.harness.launcher_entries"
ROOT = Path(__file__).parents[2]


def _spec(name: str, entry: str, directory: Path, **config: object) -> ProcessSpec:
    return ProcessSpec(
        name=name, entry=f"{ENTRIES}:{entry}", config=config, log_path=directory / f"{name}.log"
    )


def _run(scenario: Callable[[Launcher], Awaitable[None]]) -> None:
    """Run a test's body with a launcher that preloads no libraries."""

    async def run() -> None:
        async with asyncio.timeout(30), Launcher([ENTRIES], libraries=()) as launcher:
            await scenario(launcher)
        assert not launcher.scratch.path.exists()
        assert state(launcher.zygote_pid) is None

    asyncio.run(run())


# fmt: off
ENDINGS = [
    # id         how the entry leaves                          status  last line of the log
    ("returns",  {"how": "return"},                            0,      "leaving"),
    ("raises",   {"how": "raise"},                             1,      "RuntimeError: as asked"),
    ("exits",    {"how": "exit"},                              1,      "SystemExit: 0"),
    ("hard",     {"how": "hard", "status": 7},                 7,      "leaving"),
    ("killed",   {"how": "signal", "signal": signal.SIGKILL},  -9,     "leaving"),
    ("aborted",  {"how": "signal", "signal": signal.SIGABRT},  -6,     "leaving"),
]
# fmt: on


def test_exit_statuses(tmp_path: Path) -> None:
    """Every way to end gives its status at once, closes the channel and leaves a log."""

    async def scenario(launcher: Launcher) -> None:
        children = await launcher.start(
            [_spec(name, "leave", tmp_path, **how) for name, how, _, _ in ENDINGS]
        )
        for name, _, status, last_line in ENDINGS:
            assert await children[name].receive(timeout_s=5) is None
            assert await children[name].wait(timeout_s=5) == status
            assert children[name].log_tail().splitlines()[-1] == last_line
        expected = {name: status for name, _, status, _ in ENDINGS}
        assert {name: child.exit_status for name, child in children.items()} == expected
        assert await launcher.end(children) == expected

    _run(scenario)


def test_a_log_is_kept_to_its_last_lines(tmp_path: Path) -> None:
    """log_tail gives as many lines as asked; an entry that does not exist is in the log."""

    async def scenario(launcher: Launcher) -> None:
        children = await launcher.start([_spec("rank:0", "nowhere", tmp_path)])
        assert await children["rank:0"].wait(timeout_s=5) == 1
        assert children["rank:0"].log_tail(lines=1) == (
            f"AttributeError: module '{ENTRIES}' has no attribute 'nowhere'"
        )
        await launcher.end(children)

    _run(scenario)


def test_messages_and_living_children(tmp_path: Path) -> None:
    """Children talk while they live; ending them kills them; ending them twice is fine."""

    async def scenario(launcher: Launcher) -> None:
        children = await launcher.start([_spec("rank:0", "echo", tmp_path, seed=3)])
        child = children["rank:0"]
        hello = {"hello": {"seed": 3}, "pid": child.pid, "num_sockets": 0}
        assert await child.receive(timeout_s=5) == hello
        await child.send(["x" * 300_000])
        assert await child.receive(timeout_s=5) == ["x" * 300_000]
        with pytest.raises(TimeoutError, match=r"rank:0: expected a message within 0\.01 s"):
            await child.receive(timeout_s=0.01)
        with pytest.raises(TimeoutError, match=r"rank:0: expected the process \d+ to end within"):
            await child.wait(timeout_s=0.01)
        assert child.exit_status is None
        assert await launcher.end(children) == {"rank:0": None}
        assert child.exit_status == -signal.SIGKILL
        assert await launcher.end(children.values()) == {"rank:0": -signal.SIGKILL}
        child.signal(signal.SIGKILL)
        with pytest.raises(ConnectionError):
            await child.send("late")
        assert leftovers(tmp_path / "none", [child.identity], []) == []

    _run(scenario)


def test_a_closed_launcher_is_the_end_of_the_channel(tmp_path: Path) -> None:
    """Closing a child's channel ends an entry that waits for it."""

    async def scenario(launcher: Launcher) -> None:
        children = await launcher.start([_spec("rank:0", "echo", tmp_path)])
        await children["rank:0"].receive(timeout_s=5)
        children["rank:0"].close()
        assert await children["rank:0"].wait(timeout_s=5) == 0
        await launcher.end(children)

    _run(scenario)


def test_stopped_child_is_killed(tmp_path: Path) -> None:
    """A stopped child gives no stacks, is a leftover, and ends like any other."""

    async def scenario(launcher: Launcher) -> None:
        children = await launcher.start([_spec("rank:0", "echo", tmp_path)])
        child = children["rank:0"]
        await child.receive(timeout_s=5)
        child.signal(signal.SIGSTOP)
        while state(child.pid) != "T":
            await asyncio.sleep(0.001)
        stopped = "rank:0 gave no stacks in 0.05 s; process state: T."
        assert await child.stacks(timeout_s=0.05) == stopped
        assert leftovers(tmp_path / "none", [child.identity], []) == [
            f"process {child.pid} still exists, in state T"
        ]
        assert await launcher.end(children) == {"rank:0": None}
        assert child.exit_status == -signal.SIGKILL

    _run(scenario)


def test_stacks_of_a_child_blocked_in_c(tmp_path: Path) -> None:
    """Every thread's whole stack comes, again and again; an ended child says so."""

    async def scenario(launcher: Launcher) -> None:
        children = await launcher.start([_spec("rank:0", "block", tmp_path)])
        child = children["rank:0"]
        await child.receive(timeout_s=5)
        while (
            "in block\n" not in (await child.stacks()).partition("Current")[2].splitlines(True)[1]
        ):
            pass  # it is still on its way there
        for text in await asyncio.gather(child.stacks(), child.stacks()):
            threads = text.split("\n\n")
            assert len(threads) == 2
            assert "in block_in_thread" in threads[0]
            assert threads[1].startswith("Current thread 0x")
            assert threads[1].splitlines()[1].endswith("in block")
            assert text.endswith("in _run_module_as_main\n")
        await launcher.end(children)
        ended = "rank:0 has ended with status -9; no stacks."
        assert await child.stacks() == ended

    _run(scenario)


@pytest.mark.parametrize("leave", [False, True], ids=["alive", "left-before"])
def test_grandchildren_die(tmp_path: Path, leave: bool) -> None:
    """Descendants die with their own scenario, in whatever session, and not with another's."""

    async def scenario(launcher: Launcher) -> None:
        specs = [_spec(name, "parent", tmp_path, leave=leave) for name in ("rank:0", "rank:1")]
        children = await launcher.start(specs)
        pids = {name: await child.receive(timeout_s=5) for name, child in children.items()}
        if leave:
            assert [await child.wait(timeout_s=5) for child in children.values()] == [0, 0]
        found = [identify(pid) for name in children for pid in pids[name]]
        for ended in ("rank:0", "rank:1"):
            before = await launcher.end([children[ended]])
            assert before == {ended: 0 if leave else None}
            alive = [pid for name in children for pid in pids[name] if state(pid) is not None]
            assert alive == (pids["rank:1"] if ended == "rank:0" else [])
        assert not any(identity.exists() for identity in found if identity is not None)

    _run(scenario)


def test_listener_is_handed_over(tmp_path: Path) -> None:
    """The child accepts on it with TCP_NODELAY, and the port is free once the child has ended."""

    async def scenario(launcher: Launcher) -> None:
        listener = launcher.listener()
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        children = await launcher.start(
            [_spec("engine:0", "serve", tmp_path)], sockets={"engine:0": [listener]}
        )
        assert listener.fileno() == -1
        with socket.create_connection((host, port), timeout=5) as client:
            assert client.recv(100) == b"nodelay"
        assert leftovers(tmp_path / "none", [], [port]) == [f"port {port} is still listened on"]
        await launcher.end(children)
        assert leftovers(tmp_path / "none", [], [port]) == []
        launcher.listener(port).close()

    _run(scenario)


def test_names_are_checked(tmp_path: Path) -> None:
    """Two processes of one name, or a socket for nobody, start nothing and leak nothing."""

    async def scenario(launcher: Launcher) -> None:
        spec, listener = _spec("rank:0", "echo", tmp_path), launcher.listener()
        with pytest.raises(ValueError, match=r"found processes \['rank:0', 'rank:0'\]"):
            await launcher.start([spec, spec])
        with pytest.raises(ValueError, match=r"sockets for \['engine:0'\]"):
            await launcher.start([spec], sockets={"engine:0": [listener]})
        assert listener.fileno() == -1
        assert await launcher.start([]) == {}
        assert await launcher.end([]) == {}

    _run(scenario)


def test_scenarios_side_by_side(tmp_path: Path) -> None:
    """Scenarios with the same names run at once without touching each other."""

    async def scenario(launcher: Launcher) -> None:
        async def one(number: int) -> None:
            directory = tmp_path / str(number)
            children = await launcher.start(
                [_spec(f"rank:{k}", "echo", directory, number=number) for k in range(3)]
            )
            for child in children.values():
                message = await child.receive(timeout_s=20)
                assert message["hello"] == {"number": number}
            assert set((await launcher.end(children)).values()) == {None}

        await asyncio.gather(*(one(number) for number in range(6)))

    _run(scenario)


def test_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    """A scenario that is cancelled while it forks has no processes afterwards."""

    async def scenario(launcher: Launcher) -> None:
        specs = [_spec(f"rank:{k}", "echo", tmp_path) for k in range(3)]
        for num_steps in range(8):
            task = asyncio.create_task(launcher.start(specs))
            for _ in range(num_steps):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            children = Path(f"/proc/{launcher.zygote_pid}/task/{launcher.zygote_pid}/children")
            assert children.read_text() == ""

    _run(scenario)


def test_no_descriptor_leaks(tmp_path: Path) -> None:
    """Fifty scenarios later both the launcher and the zygote have the descriptors they had."""

    async def scenario(launcher: Launcher) -> None:
        def counts() -> list[int]:
            pids = (os.getpid(), launcher.zygote_pid)
            return [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]

        before = counts()
        for _ in range(50):
            children = await launcher.start(
                [_spec("rank:0", "echo", tmp_path), _spec("engine:0", "echo", tmp_path)],
                sockets={"engine:0": [launcher.listener()]},
            )
            await launcher.end(children)
        await asyncio.sleep(0)  # transports close their sockets in the next round of the loop
        assert counts() == before

    _run(scenario)


def test_sixty_four_ranks_and_engines(tmp_path: Path) -> None:
    """The largest scenario starts, each process with its own sockets, and ends."""

    async def scenario(launcher: Launcher) -> None:
        specs = [_spec(f"rank:{k}", "echo", tmp_path, k=k) for k in range(64)]
        specs += [_spec(f"engine:{k}", "echo", tmp_path, k=k) for k in range(64)]
        sockets = {f"engine:{k}": [launcher.listener()] for k in range(64)}
        children = await launcher.start(specs, sockets=sockets)
        for name, child in children.items():
            assert await child.receive(timeout_s=20) == {
                "hello": {"k": int(name.partition(":")[2])},
                "pid": child.pid,
                "num_sockets": 1 if name.startswith("engine") else 0,
            }
        assert await launcher.end(children) == dict.fromkeys(children)
        identities = [child.identity for child in children.values()]
        assert leftovers(tmp_path / "none", identities, []) == []

    _run(scenario)


LAUNCHER = f"""
import asyncio, signal, sys
from pathlib import Path
from harness.contracts import ProcessSpec
from harness.launcher import Launcher

# A shell's background job is started with SIGINT ignored, and so are the tests in it.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def main():
    async with Launcher(["{ENTRIES}"], libraries=()) as launcher:
        log_path = Path(sys.argv[1]) / "rank.log"
        spec = ProcessSpec(name="rank", entry="{ENTRIES}:parent", config={{}}, log_path=log_path)
        children = await launcher.start([spec])
        pids = await children["rank"].receive()
        print(launcher.scratch.path, launcher.zygote_pid, children["rank"].pid, *pids, flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_launcher(tmp_path: Path, number: int) -> None:
    """However the launcher dies, no process and no scratch directory is left after 2 s."""
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as launcher:
        assert launcher.stdout is not None
        scratch, *pids = launcher.stdout.readline().split()
        identities = [identify(int(pid)) for pid in pids]
        assert len(identities) == 5
        os.kill(launcher.pid, number)
    deadline_s = time.monotonic() + 2
    left = ["not looked yet"]
    while left and time.monotonic() < deadline_s:
        left = [p.pid for p in identities if p is not None and state(p.pid) not in (None, "Z")]
        left += [scratch] if Path(scratch).exists() else []
        time.sleep(0.005)
    assert left == []
