"""The events of a finished journal, one at a time: a journal may be larger than memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

CHUNK_BYTES = 1 << 20
LINE_BYTES = 32 << 20  # a longer line is no event of ours
MAX_TIME_S = 1e10  # on a monotonic clock: three centuries

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Break:
    """A place where a journal is no journal: the events around it are whole.

    Attributes:
        offset: of its first byte in the file.
        reason: what is wrong there.
    """

    offset: int
    reason: str

    def __str__(self) -> str:
        return f"the journal is broken at byte {self.offset}: {self.reason}"


def stream(path: Path) -> Iterator[Event | Break]:
    """Yield every event of a journal in the order of the file, and a `Break` for all else in it.

    Whatever the file holds, nothing is raised; memory holds one chunk and one line.
    """
    offset, tail, skipping = 0, b"", False
    try:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                *lines, tail = (tail + chunk).split(b"\n")
                for line in lines:
                    if not skipping:
                        yield _parse(line, offset)
                    skipping = False
                    offset += len(line) + 1
                if len(tail) > LINE_BYTES:
                    if not skipping:
                        yield Break(offset, f"a line is longer than {LINE_BYTES} bytes")
                    offset, tail, skipping = offset + len(tail), b"", True
    except (OSError, ValueError) as error:  # a name can be none, too
        yield Break(offset, getattr(error, "strerror", None) or str(error))
    if tail and not skipping:
        yield Break(offset, "it ends in the middle of a line")


def _loads(line: bytes) -> Any:
    """``json.loads`` at a third of its cost; orjson refuses lone surrogates, which engines print.

    Raises:
        ValueError: of the encoding or of the syntax.
        RecursionError: it is nested without end.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line.decode())


def _parse(line: bytes, offset: int) -> Event | Break:
    try:
        event = _loads(line)
        if abs(event["t"]) < MAX_TIME_S and type(event["who"]) is type(event["event"]) is str:
            return event  # type: ignore[no-any-return]  # three keys of it were looked at
    except (ValueError, RecursionError) as error:
        return Break(offset, str(error))
    except (KeyError, TypeError, OverflowError):
        pass
    return Break(offset, "expected an event with t, who and event, found something else")
