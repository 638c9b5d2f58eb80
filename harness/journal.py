"""The journal of a run: one JSON line per event, appended by every process, read by everyone.

A line is ``{"t": seconds, "who": "engine:1", "event": "...", ...fields}``, ``t`` on the machine's
monotonic clock, which all processes share.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.contracts import Json

READ_BYTES = 1 << 20  # one read of the tail; events are some 200 bytes
CORRUPT = "journal.corrupt"

_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().raw_decode


class _Descriptor:
    """Owns one file descriptor; -1 while there is none. Leaving its context closes it."""

    _fd = -1

    def close(self) -> None:
        """Close the file; closing twice is fine, using it afterwards is an error."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class JournalWriter(_Descriptor):
    """Appends the events of one process to the journal. A ``contracts.Recorder``.

    Every event is one ``write`` on a descriptor opened with O_APPEND: the kernel serialises the
    writers, so neither threads nor processes need a lock, and a killed process leaves whole lines.
    """

    def __init__(self, path: Path, who: str) -> None:
        self.who = who
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def __call__(self, event: str, /, **fields: Json) -> None:
        """Append one event.

        Raises:
            TypeError: a field is not JSON.
            OSError: the file system is full, or the writer is closed.
        """
        line = {"t": time.monotonic(), "who": self.who, "event": event} | fields
        data = _encode(line).encode() + b"\n"
        if os.write(self._fd, data) != len(data):
            raise OSError(f"journal: expected room for {len(data)} bytes, the disk is full.")


class JournalReader(_Descriptor):
    """Follows a journal while it is written. Never raises for what the file holds.

    The file need not exist yet. A line that is no event is reported as the event
    ``journal.corrupt`` with its ``offset`` in bytes, its ``line`` and the ``reason``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tail = b""  # bytes after the last newline: an event that is being written
        self._offset = 0  # of the tail's first byte
        self._last_t = 0.0

    def read_new(self) -> list[dict[str, Any]]:
        """Return the events completed since the last call, in the order of the file."""
        data = self._tail + self._read()
        *lines, self._tail = data.split(b"\n")
        events = []
        for line in lines:
            events.append(self._parse(line))
            self._offset += len(line) + 1
        return events

    def read_rest(self) -> list[dict[str, Any]]:
        """`read_new` once every writer has ended: an unfinished last line is corrupt now."""
        events = self.read_new()
        if self._tail:
            events.append(self._corrupt(self._tail, "the line has no end"))
            self._offset += len(self._tail)
            self._tail = b""
        return events

    def _read(self) -> bytes:
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""
        parts = []
        while data := os.read(self._fd, READ_BYTES):
            parts.append(data)
        return b"".join(parts)

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            event = _loads(line)
        except ValueError as error:  # of the encoding or of the syntax
            return self._corrupt(line, str(error))
        if not isinstance(event, dict):
            return self._corrupt(line, f"expected an object, found {type(event).__name__}")
        missing = [key for key in ("t", "who", "event") if key not in event]
        if missing:
            return self._corrupt(line, f"no {', '.join(missing)}")
        if isinstance(event["t"], int | float):
            self._last_t = event["t"]
        return event

    def _corrupt(self, line: bytes, reason: str) -> dict[str, Any]:
        return {
            "t": self._last_t,  # of the event before it, so that sorting by time keeps its place
            "who": "journal",
            "event": CORRUPT,
            "offset": self._offset,
            "line": line.decode(errors="replace"),
            "reason": reason,
        }


def _loads(line: bytes) -> Any:
    """``json.loads``, at half its cost for the lines that a writer writes.

    Raises:
        ValueError: of the encoding or of the syntax.
    """
    try:
        event, end = _decode(text := line.decode())
        if end == len(text):
            return event
    except ValueError:  # also for leading blanks, which JSON allows
        pass
    return json.loads(line)


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return every event of a finished journal; an empty list where there is no file."""
    with JournalReader(path) as reader:
        return reader.read_rest()
