"""One process of a scenario, as the launcher's side holds it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

from harness.channel import ChannelProtocol
from harness.contracts import Json
from harness.errors import LauncherError as LauncherError  # defined where nothing heavy is imported
from harness.processes import ProcessIdentity, state
from harness.zygote_child import STACKS_SUFFIX

TAIL_BYTES = 1 << 16
TAIL_LINES = 32
_LAST_FRAME = "in _run_module_as_main"  # the outermost frame of the main thread, dumped last
_SETTLED_S = 0.05  # a dump without that frame (it is deep) is complete once it stops growing
_POLL_S = 0.0005


class Child:
    """A process that the launcher started.

    Attributes:
        name: as its ``ProcessSpec`` says.
        identity: its pid and start time.
        mark: what its own children are recognised by.
        log_path: its stdout and stderr.
    """

    identity: ProcessIdentity

    def __init__(self, name: str, mark: int, log_path: Path, channel: ChannelProtocol) -> None:
        self.name = name
        self.mark = mark
        self.log_path = log_path
        self._channel = channel
        self._exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._dumping = asyncio.Lock()

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for the signal that killed it; ``None`` while it lives."""
        if not self._exited.done() or self._exited.exception() is not None:
            return None
        return self._exited.result()

    async def send(self, message: Json) -> None:
        """Send a message. It does not wait for the child to read it, which may be stopped.

        Raises:
            ConnectionError: the child has closed its channel, or died.
        """
        self._channel.send(message)

    async def receive(self, timeout_s: float | None = None) -> Json | None:
        """Return the next message; ``None`` once the child closed its channel, or died.

        Raises:
            TimeoutError: nothing came within ``timeout_s`` seconds.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._channel.receive()
        except TimeoutError:
            raise TimeoutError(
                f"{self.name}: expected a message within {timeout_s} s, found none."
            ) from None

    async def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit status once the process has ended.

        Raises:
            TimeoutError: it lives on after ``timeout_s`` seconds.
            LauncherError: the zygote died, and the status with it.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._exited)
        except TimeoutError:
            raise TimeoutError(
                f"{self.name}: expected the process {self.pid} to end within {timeout_s} s, "
                f"it is in state {state(self.pid)}."
            ) from None

    def signal(self, number: int) -> None:
        """Send a signal to the process itself, not to its group; nothing if it has ended."""
        if not self._exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def stacks(self, timeout_s: float = 2.0) -> str:
        """Return the Python stack of every thread, also of one that blocks in C or holds the GIL.

        A process that cannot answer (it has ended, or is stopped) gives a sentence saying so.
        """
        async with self._dumping:
            path = self.log_path.with_name(self.log_path.name + STACKS_SUFFIX)
            before = path.stat().st_size if path.exists() else 0
            if self._exited.done():
                return f"{self.name} has ended with status {self.exit_status}; no stacks."
            self.signal(signal.SIGUSR1)
            text = await _read_dump(path, before, timeout_s)
        if text is None:
            found = state(self.pid)
            return f"{self.name} gave no stacks in {timeout_s} s; process state: {found}."
        return text

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """Return the last lines of stdout and stderr."""
        return tail_of(self.log_path, lines)

    def note_exit(self, status: int) -> None:
        """The zygote reaped the process."""
        if not self._exited.done():
            self._exited.set_result(status)

    def fail(self, error: LauncherError) -> None:
        """The zygote died: no exit status will come."""
        if not self._exited.done():
            self._exited.set_exception(error)
            self._exited.exception()  # whoever waits hears of it; nobody has to wait

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def tail_of(path: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a text file; a sentence where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return f"({path} does not exist)"
    return "\n".join(text.splitlines()[-lines:])


async def _read_dump(path: Path, offset: int, timeout_s: float) -> str | None:
    """Wait for a dump that faulthandler is appending to ``path``; ``None`` if none begins.

    faulthandler marks no end, but it dumps the main thread last, and that one's outermost frame
    is the same in every process.
    """
    begin_s = grown_s = time.monotonic()
    text = ""
    while (now_s := time.monotonic()) - begin_s < timeout_s:
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(offset)
            found = file.read().decode(errors="replace")
            if len(found) > len(text):
                text, grown_s = found, now_s
        if text.endswith("\n"):
            if text.rstrip().endswith(_LAST_FRAME):
                return text
            if now_s - grown_s > _SETTLED_S:
                return text
        await asyncio.sleep(_POLL_S)
    return text or None
