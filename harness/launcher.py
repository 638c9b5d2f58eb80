"""Starts and ends the processes of scenarios, several scenarios at a time.

The launcher runs on the asyncio loop and imports nothing heavy; the zygote (``harness.zygote``)
forks for it. Nothing outlives it: a zygote that sees it gone kills everything and removes the
scratch directory, and a launcher that sees the zygote gone does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from harness.channel import ChannelProtocol
from harness.child import Child, LauncherError
from harness.contracts import ProcessSpec
from harness.processes import ProcessIdentity, leftovers, marked_processes, new_mark_base
from harness.scratch import Scratch
from harness.zygote_link import ZygoteLink

__all__ = ["LIBRARIES", "Child", "Launcher", "LauncherError", "leftovers"]

# What every scenario imports, whatever it tests. Preloaded once, since torch alone takes a second.
LIBRARIES = (
    "numpy",
    "torch",
    "torch.distributed",
    "fastapi",
    "uvicorn",
    "uvicorn.lifespan.off",
    "uvicorn.lifespan.on",
    "uvicorn.loops.asyncio",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.h11_impl",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
    "httptools",
    "httpx",
    "anyio._backends._asyncio",
)
START_LIMIT_S = 60.0  # some 5 ms a process
END_LIMIT_S = 20.0  # a killed process takes milliseconds, unless the kernel is busy with it
BACKLOG = 512


class Launcher:
    """Forks scenarios' processes. Use it as an async context; leaving it ends every process.

    Args:
        preload: the project's own modules that the zygote imports before forking.
        scratch: the run's scratch directory, removed by whoever made it; by default the launcher
            makes one and removes it.
        libraries: what is imported before them.

    Raises:
        LauncherError: on entering: a module cannot be imported, or is unsafe to fork with.
    """

    def __init__(
        self,
        preload: Sequence[str] = (),
        *,
        scratch: Scratch | None = None,
        libraries: Sequence[str] = LIBRARIES,
    ) -> None:
        self._preload = [*libraries, *preload]
        self._owns_scratch = scratch is None
        self._scratch = scratch
        self._marks = itertools.count(new_mark_base())
        self._children: dict[int, Child] = {}  # by mark, until ended
        self._cleaning: asyncio.Task[None] | None = None

    @property
    def scratch(self) -> Scratch:
        """The run's scratch directory; from entering on."""
        assert self._scratch is not None, "the launcher has not been entered"
        return self._scratch

    @property
    def zygote_pid(self) -> int:
        return self._zygote.pid

    async def __aenter__(self) -> Self:
        if self._scratch is None:
            self._scratch = Scratch()
        self._zygote = ZygoteLink(
            self._scratch.path / "zygote.log", on_exit=self._on_exit, on_death=self._on_death
        )
        try:
            await self._zygote.open(self._preload, self._scratch.path)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(
        self,
        specs: Sequence[ProcessSpec],
        *,
        sockets: Mapping[str, Sequence[socket.socket]] | None = None,
    ) -> dict[str, Child]:
        """Fork one process per spec, all at once; return them by name.

        Args:
            specs: the processes; names are unique among them.
            sockets: by process name, what its entry is given. They are handed over: this side's
                copies are closed, also when an error is raised.

        Raises:
            LauncherError: a fork failed, and none of the processes is left; or the zygote died.
        """
        task = asyncio.create_task(self._start(specs, dict(sockets or {})))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # The zygote is forking: a cancelled scenario must not leave the processes behind.
            with contextlib.suppress(LauncherError):
                await self.end(await task)
            raise

    async def end(self, children: Mapping[str, Child] | Iterable[Child]) -> dict[str, int | None]:
        """Kill processes, their process groups and orphans, and wait until all are reaped.

        Returns:
            By name, the exit status before the kill; ``None`` for a process that was alive.
        """
        chosen = list(children.values() if isinstance(children, Mapping) else children)
        marks = [child.mark for child in chosen if child.mark in self._children]
        before: dict[str, int | None] = {child.name: child.exit_status for child in chosen}
        try:
            if marks:
                reply = await self._zygote.request({"end": marks}, limit_s=END_LIMIT_S)
                ended = {int(mark): status for mark, status in reply["ended"].items()}
                before |= {c.name: ended[c.mark] for c in chosen if c.mark in ended}
        except LauncherError:
            await _kill_marked(marks)
        finally:
            self._forget(chosen)
        return before

    def listener(self, port: int = 0) -> socket.socket:
        """Return a TCP socket that listens on loopback, on a free port by default.

        Connections it accepts have TCP_NODELAY: asyncio would leave it out, and delayed
        acknowledgements cost 40 ms a request.

        Raises:
            OSError: ``port`` is taken.
        """
        # With the protocol named, since asyncio looks for IPPROTO_TCP in it.
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.bind(("127.0.0.1", port))
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
        return sock

    async def close(self) -> None:
        """End every process, the zygote's too, and remove the scratch directory if it is ours."""
        status = await self._zygote.close()
        if status != 0:  # it could not do its part
            await _kill_marked(list(self._children))
        if self._cleaning is not None:
            await self._cleaning
        self._forget(list(self._children.values()))
        if self._owns_scratch:
            self.scratch.remove()

    async def _start(
        self, specs: Sequence[ProcessSpec], sockets: Mapping[str, Sequence[socket.socket]]
    ) -> dict[str, Child]:
        names = [spec.name for spec in specs]
        children: list[Child] = []
        with contextlib.ExitStack() as handed_over:
            for sock in itertools.chain.from_iterable(sockets.values()):
                handed_over.enter_context(sock)
            if len(set(names)) < len(names) or not sockets.keys() <= set(names):
                raise ValueError(
                    f"launcher: expected unique process names, and sockets for these only, "
                    f"found processes {names} and sockets for {list(sockets)}."
                )
            requests: list[dict[str, Any]] = []
            fds: list[int] = []
            try:
                for spec in specs:
                    child, far_end = await self._prepare(spec)
                    children.append(child)
                    handed_over.enter_context(far_end)
                    own = [far_end, *sockets.get(spec.name, ())]
                    fds += [sock.fileno() for sock in own]
                    requests.append(_describe(spec, child.mark, len(own) - 1))
                reply = await self._zygote.request({"start": requests}, fds, limit_s=START_LIMIT_S)
                if "error" in reply:
                    raise self._zygote.error(f"to fork {', '.join(names)}", reply["error"])
            except BaseException:
                self._forget(children)
                raise
        for child, (pid, ticks) in zip(children, reply["started"], strict=True):
            child.identity = ProcessIdentity(pid, ticks)
        return {child.name: child for child in children}

    async def _prepare(self, spec: ProcessSpec) -> tuple[Child, socket.socket]:
        """Return the child to be, with its channel open here, and the channel's far end."""
        spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        near_end, far_end = socket.socketpair()
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_unix_connection(ChannelProtocol, sock=near_end)
        child = Child(spec.name, next(self._marks), spec.log_path, channel)
        self._children[child.mark] = child
        return child, far_end

    def _forget(self, children: Iterable[Child]) -> None:
        for child in children:
            child.close()
            self._children.pop(child.mark, None)

    def _on_exit(self, mark: int, status: int) -> None:
        if child := self._children.get(mark):
            child.note_exit(status)

    def _on_death(self, error: LauncherError) -> None:
        """The zygote died, and its children with it; theirs are left."""
        for child in self._children.values():
            child.fail(error)
        self._cleaning = asyncio.create_task(_kill_marked(list(self._children)))


async def _kill_marked(marks: Sequence[int]) -> None:
    """Kill what carries the marks without the zygote's help."""
    deadline_s = time.monotonic() + END_LIMIT_S
    while marks and (pids := marked_processes(set(marks))) and time.monotonic() < deadline_s:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.005)


def _describe(spec: ProcessSpec, mark: int, num_sockets: int) -> dict[str, Any]:
    return {
        "entry": spec.entry,
        "config": spec.config,
        "log_path": str(spec.log_path.absolute()),
        "mark": mark,
        "num_sockets": num_sockets,
    }
