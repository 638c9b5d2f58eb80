"""Journals are streamed, and what is no event is a break that says where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sample_runs import EVENTS, event, lines

from reports import journal_stream
from reports.journal_stream import Break, stream

WHOLE = event(1.0, "rank:0", "step", name="x", phase="begin")
LINE = json.dumps(WHOLE).encode()

# fmt: off
BROKEN = [
    # id            bytes                                    offset  reason
    ("cut-off",     LINE + b"\n" + LINE[:20],  len(LINE) + 1, "in the middle of a line"),
    ("no-json",     b"{oops}\n" + LINE + b"\n",              0, "Expecting property name"),
    ("no-utf8",     b'{"t": "\xff"}\n' + LINE + b"\n",       0, "invalid start byte"),
    ("no-object",   b"[1]\n" + LINE + b"\n",                 0, "expected an event with t"),
    ("no-time",     b'{"who": "a", "event": "b"}\n' + LINE + b"\n", 0, "expected an event"),
    ("endless",     b'{"t": Infinity, "who": "a", "event": "b"}\n' + LINE + b"\n", 0, "expected"),
    ("empty-line",  b"\n" + LINE + b"\n",                    0, "Expecting value"),
    ("zeros",       b"\0" * 100 + b"\n" + LINE + b"\n",      0, "Expecting value"),
    ("deep",        b"[" * 100_000 + b"\n" + LINE + b"\n",   0, "recursion"),
]
# fmt: on


@pytest.mark.parametrize(
    ("data", "offset", "reason"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN]
)
def test_breaks(data: bytes, offset: int, reason: str, tmp_path: Path) -> None:
    """Every break is told with its offset, and the event beside it is whole."""
    (tmp_path / "journal.jsonl").write_bytes(data)
    found = list(stream(tmp_path / "journal.jsonl"))
    (broken,) = [each for each in found if isinstance(each, Break)]
    assert broken.offset == offset
    assert reason in broken.reason
    assert [each for each in found if not isinstance(each, Break)] == [WHOLE]


def test_a_missing_journal(tmp_path: Path) -> None:
    """A journal that is not there is a break, not an error."""
    assert list(stream(tmp_path / "none")) == [Break(0, "No such file or directory")]
    assert list(stream(tmp_path / "no\0ne")) == [Break(0, "embedded null byte")]


def test_lines_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a chunk ends makes no difference."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(lines(EVENTS))
    for size in (1, 7, 100):
        monkeypatch.setattr(journal_stream, "CHUNK_BYTES", size)
        assert list(stream(path)) == EVENTS


def test_a_line_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is longer than any event is skipped without being held in memory."""
    monkeypatch.setattr(journal_stream, "CHUNK_BYTES", 10)
    monkeypatch.setattr(journal_stream, "LINE_BYTES", 300)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(LINE + b"\n" + b"x" * 2000 + b"\n" + LINE + b"\n")
    first, broken, last = stream(path)
    assert (first, last) == (WHOLE, WHOLE)
    assert broken == Break(len(LINE) + 1, "a line is longer than 300 bytes")
