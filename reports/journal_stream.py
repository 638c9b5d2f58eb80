"""The events of a finished journal, one at a time: a journal may be larger than memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson

CHUNK_BYTES = 1 << 20
LINE_BYTES = 32 << 20  # a longer line is no event of ours
MAX_TIME_S = 1e10  # on a monotonic clock: three centuries
_TIME, _WHO, _KIND = map(itemgetter, ("t", "who", "event"))

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
                if skipping and lines:
                    offset += len(lines.pop(0)) + 1
                    skipping = False
                yield from _parse_all(lines, offset)
                offset += sum(map(len, lines)) + len(lines)
                if len(tail) > LINE_BYTES:
                    if not skipping:
                        yield Break(offset, f"a line is longer than {LINE_BYTES} bytes")
                    offset, tail, skipping = offset + len(tail), b"", True
    except (OSError, ValueError) as error:  # a name can be none, too
        yield Break(offset, getattr(error, "strerror", None) or str(error))
    if tail and not skipping:
        yield Break(offset, "it ends in the middle of a line")


def _parse_all(lines: list[bytes], offset: int) -> Iterable[Event | Break]:
    """Return what lines hold that follow each other: all at once, where all are events."""
    try:
        events = orjson.loads(b"[%b]" % b",".join(lines))
        if len(events) == len(lines) and _are_events(events):
            return events  # type: ignore[no-any-return]  # three keys of each were looked at
    except (ValueError, KeyError, TypeError):
        pass  # one of them is none: which, and why, is told by looking at each
    return _parse_each(lines, offset)


def _are_events(events: list[Any]) -> bool:
    """Whether they have what `_parse` asks of one; raises KeyError or TypeError as well."""
    names = {*map(type, map(_WHO, events)), *map(type, map(_KIND, events))}
    return names <= {str} and max(map(abs, map(_TIME, events)), default=0) < MAX_TIME_S


def _parse_each(lines: list[bytes], offset: int) -> Iterator[Event | Break]:
    for line in lines:
        yield _parse(line, offset)
        offset += len(line) + 1


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
