"""The launcher's end of the zygote: its process, its control socket, requests and answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.channel import READ_BYTES, FrameSplitter, batches, pack_frame
from harness.child import LauncherError, tail_of

# The environment of the zygote and its children, over the launcher's own.
ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",  # nothing listens beyond loopback
    "OMP_NUM_THREADS": "1",  # OpenBLAS and OpenMP pools are threads, which a fork would lose
    # Entries of torch's Flight Recorder; 0, the default, is off. The last few are asked for, and
    # each costs 20 us to read.
    "TORCH_FR_BUFFER_SIZE": "64",
}
PRELOAD_LIMIT_S = 120.0  # some seconds; more on a loaded machine
EXIT_LIMIT_S = 20.0


class ZygoteLink:
    """One zygote process.

    Args:
        log_path: receives its stdout and stderr.
        on_exit: called with the mark and the exit status of every child that ends.
        on_death: called, once, when the zygote has ended without having been closed.
    """

    def __init__(
        self,
        log_path: Path,
        *,
        on_exit: Callable[[int, int], None],
        on_death: Callable[[LauncherError], None],
    ) -> None:
        self._log_path = log_path
        self._on_exit = on_exit
        self._on_death = on_death
        self._requests = itertools.count(1)
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._outbox: asyncio.Queue[tuple[bytes, Sequence[int]]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: LauncherError | None = None
        self._up = False
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._control, zygote_end = socket.socketpair()
        self._control.setblocking(False)
        with zygote_end:
            self._process = self._spawn(zygote_end.fileno())

    @property
    def pid(self) -> int:
        return self._process.pid

    async def open(self, preload: Sequence[str], scratch: Path) -> None:
        """Wait until the zygote has imported ``preload``.

        Args:
            preload: the modules, in order.
            scratch: the directory to remove when this process dies.

        Raises:
            LauncherError: a module cannot be imported, or is unsafe to fork with.
        """
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]
        root = str(_root())
        hello = {
            "preload": list(preload),
            "sys_path": [root, *(path for path in sys.path if path != root)],
            "scratch": str(scratch),
        }
        self._outbox.put_nowait((pack_frame(hello), ()))
        expected = f"a zygote that is ready within {PRELOAD_LIMIT_S} s"
        answer = await self._within(PRELOAD_LIMIT_S, self._ready, expected)
        self._up = True
        if "error" in answer:
            raise LauncherError(f"launcher: {answer['error']}")

    async def request(
        self, message: dict[str, Any], fds: Sequence[int] = (), *, limit_s: float
    ) -> dict[str, Any]:
        """Return the zygote's answer to a message, with which it receives copies of ``fds``.

        Raises:
            LauncherError: the zygote has died, or gives no answer in ``limit_s`` seconds.
        """
        if self._failure is not None:
            raise self._failure
        request = next(self._requests)
        reply = self._pending[request] = asyncio.get_running_loop().create_future()
        self._outbox.put_nowait((pack_frame(message | {"request": request}, len(fds)), fds))
        expected = f"an answer of the zygote to {', '.join(message)} within {limit_s} s"
        try:
            return await self._within(limit_s, reply, expected)
        finally:
            del self._pending[request]

    async def close(self) -> int:
        """Let the zygote kill its children and end; return its exit status (0: all went well)."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._control.close()
        if not self._up:  # it would finish its imports first; it has no children yet
            self._process.kill()
        self._fail(LauncherError("launcher: expected an open launcher, it has been closed."))
        return await self._ended()

    def error(self, expected: str, found: str) -> LauncherError:
        """Return an error that ends with the zygote's last words."""
        return LauncherError(
            f"launcher: expected {expected}, found: {found}. "
            f"The end of {self._log_path}:\n{tail_of(self._log_path)}"
        )

    def _spawn(self, control_fd: int) -> subprocess.Popen[bytes]:
        search_path = os.pathsep.join(filter(None, [str(_root()), os.environ.get("PYTHONPATH")]))
        with self._log_path.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "harness.zygote", str(control_fd)],
                pass_fds=[control_fd],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | ENVIRONMENT | {"PYTHONPATH": search_path},
                start_new_session=True,  # Ctrl-C is the launcher's to handle
            )

    async def _within(
        self, limit_s: float, reply: asyncio.Future[dict[str, Any]], expected: str
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(limit_s):
                return await reply
        except TimeoutError:
            raise self.error(expected, "none") from None

    async def _write(self) -> None:
        """Send the outbox; a task of its own, so that no cancelled request cuts a frame."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):  # the reader tells
            while True:
                data, fds = await self._outbox.get()
                await loop.sock_sendall(self._control, data)
                for batch in batches(fds):
                    await self._send_fds(batch)

    async def _send_fds(self, fds: Sequence[int]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                socket.send_fds(self._control, [b"\0"], fds)
                return
            except BlockingIOError:
                writable = asyncio.Event()
                loop.add_writer(self._control, writable.set)
                try:
                    await writable.wait()
                finally:
                    loop.remove_writer(self._control)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        splitter = FrameSplitter()
        with contextlib.suppress(ConnectionError):
            while data := await loop.sock_recv(self._control, READ_BYTES):
                for message in splitter.feed(data):
                    self._dispatch(message)
        error = self.error("a living zygote", f"it ended with status {await self._ended()}")
        self._fail(error)
        self._on_death(error)

    def _dispatch(self, message: dict[str, Any]) -> None:
        if "exited" in message:
            self._on_exit(message["exited"], message["status"])
            return
        reply = self._pending.get(message["request"]) if "request" in message else self._ready
        if reply is not None and not reply.done():  # else nobody waits for it any more
            reply.set_result(message)

    def _fail(self, error: LauncherError) -> None:
        self._failure = self._failure or error
        for reply in [self._ready, *self._pending.values()]:
            if not reply.done():
                reply.set_exception(error)
                reply.exception()  # so that asyncio does not warn where nobody waits

    async def _ended(self) -> int:
        """Return the zygote's exit status, after killing it if it does not end by itself."""
        if self._process.poll() is None:
            loop = asyncio.get_running_loop()
            ended = asyncio.Event()
            pidfd = os.pidfd_open(self.pid)
            loop.add_reader(pidfd, ended.set)
            try:
                async with asyncio.timeout(EXIT_LIMIT_S):
                    await ended.wait()
            except TimeoutError:
                self._process.kill()
            finally:
                loop.remove_reader(pidfd)
                os.close(pidfd)
        return self._process.wait()


def _root() -> Path:
    """Return the directory that the project's packages are imported from."""
    return Path(__file__).parents[1]
