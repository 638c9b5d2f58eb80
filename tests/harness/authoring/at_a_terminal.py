"""Runs the command line at a terminal of its own, as somebody sits there and types."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
LIMIT_S = 60.0  # of one wait for output
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Session:
    """One command at a terminal.

    Args:
        arguments: of ``resync-chaos``.
        folder: where it runs.
        columns: width of the terminal.
    """

    def __init__(self, arguments: Sequence[str], folder: Path, *, columns: int = 100) -> None:
        self._own, theirs = pty.openpty()
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "COLUMNS": str(columns),
            "TERM": "xterm",
            "NO_COLOR": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.cli", *arguments],
            cwd=folder,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._raw = ""

    @property
    def shown(self) -> str:
        """All that stands on the screen, as text."""
        return _CONTROL.sub("", self._raw).replace("\r\n", "\n").replace("\r", "")

    def see(self, text: str, times: int = 1) -> None:
        """Wait until the text was shown so many times."""
        while self.shown.count(text) < times:
            assert self._read(), f"the command ended before it showed {text!r}:\n{self.shown}"

    def type(self, answer: str) -> None:
        """Type a line."""
        os.write(self._own, f"{answer}\n".encode())

    def interrupt(self) -> None:
        """Press Ctrl-C: to the program itself, since the terminal is not its controlling one."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Read to the end and return the exit code."""
        while self._read():
            pass
        return self._process.wait(LIMIT_S)

    def close(self) -> None:
        """End the command, if it has not ended, and the terminal."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(LIMIT_S)
        os.close(self._own)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._own], [], [], LIMIT_S)
        assert ready, f"nothing was shown for {LIMIT_S:g} s after:\n{self.shown}"
        try:
            data = os.read(self._own, 65536)
        except OSError:  # Linux: the other end was closed
            return False
        self._raw += data.decode(errors="replace")
        return bool(data)


def dialogue(
    arguments: Sequence[str], answers: Sequence[str], folder: Path, *, asks: str = " > "
) -> tuple[int, str]:
    """Return exit code and screen of a command that asks, given an answer to each question."""
    session = Session(arguments, folder)
    try:
        for number, answer in enumerate(answers, start=1):
            session.see(asks, times=number)
            session.type(answer)
            session.see(f"{asks}{answer}\n", times=answers[:number].count(answer))
        code = session.end()
    finally:
        session.close()
    return code, session.shown
