"""The journal: whole lines from many writers, and a reader that no content can stop."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from harness.journal import CORRUPT, JournalReader, JournalWriter, read_journal

GOOD = b'{"t":1.5,"who":"rank:0","event":"a"}\n'
EVENT = {"t": 1.5, "who": "rank:0", "event": "a"}


def _corrupt(line: str, reason: str, *, offset: float = 0, t: float = 0.0) -> dict[str, object]:
    fields = {"offset": offset, "line": line, "reason": reason}
    return {"t": t, "who": "journal", "event": CORRUPT, **fields}


NO_JSON = "Expecting value: line 1 column 1 (char 0)"
NO_OBJECT = "expected an object, found list"
LATER = {"offset": len(GOOD), "t": 1.5}

# fmt: off
CONTENTS = [
    # id               content                    events
    ("empty",          b"",                       []),
    ("one",            GOOD,                      [EVENT]),
    ("partial",        GOOD + b'{"t":2.0,"w',     [EVENT]),
    ("no-json",        b"nonsense\n" + GOOD,      [_corrupt("nonsense", NO_JSON), EVENT]),
    ("after-an-event", GOOD + b"x\n",             [EVENT, _corrupt("x", NO_JSON, **LATER)]),
    ("no-object",      b"[1]\n",                  [_corrupt("[1]", NO_OBJECT)]),
    ("no-keys",        b'{"t":1}\n',              [_corrupt('{"t":1}', "no who, event")]),
    ("empty-line",     b"\n",                     [_corrupt("", NO_JSON)]),
]
# fmt: on


@pytest.mark.parametrize(
    ("content", "events"), [case[1:] for case in CONTENTS], ids=[case[0] for case in CONTENTS]
)
def test_read_new(tmp_path: Path, content: bytes, events: list[object]) -> None:
    """A complete line is an event, or a journal.corrupt event; a partial one is not there yet."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(content)
    with JournalReader(path) as reader:
        assert reader.read_new() == events
        assert reader.read_new() == []


def test_bytes_that_are_no_text_are_corrupt(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are reported with replacements."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"\xff\xfe\n")
    [event] = read_journal(path)
    assert (event["event"], event["line"]) == (CORRUPT, "\ufffd\ufffd")


def test_reader_follows_byte_by_byte(tmp_path: Path) -> None:
    """However a line is cut, its event appears once, when its newline is there."""
    path = tmp_path / "journal.jsonl"
    found: list[object] = []
    with JournalReader(path) as reader, path.open("wb", buffering=0) as file:
        for byte in GOOD * 2:
            file.write(bytes([byte]))
            found.append(reader.read_new())
    nothing = [[]] * (len(GOOD) - 1)
    assert found == [*nothing, [EVENT], *nothing, [EVENT]]


def test_a_file_that_does_not_exist_yet_is_empty(tmp_path: Path) -> None:
    """The reader may start before the first writer."""
    path = tmp_path / "journal.jsonl"
    with JournalReader(path) as reader:
        assert reader.read_new() == []
        path.write_bytes(GOOD)
        assert reader.read_new() == [EVENT]


def test_an_unfinished_last_line_is_corrupt_at_the_end(tmp_path: Path) -> None:
    """Once the writers have ended, a line without an end is reported, once."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(GOOD + b'{"t":')
    with JournalReader(path) as reader:
        corrupt = _corrupt('{"t":', "the line has no end", offset=37, t=1.5)
        assert reader.read_rest() == [EVENT, corrupt]
        assert reader.read_rest() == []


def test_writer_writes_one_line_per_event(tmp_path: Path) -> None:
    """An event has the time, the writer and its fields, in this order."""
    path = tmp_path / "journal.jsonl"
    with JournalWriter(path, "engine:1") as record:
        record("engine.update", status=200, body={"a": [1]})
    [line] = path.read_text().splitlines()
    event = json.loads(line)
    assert list(event) == ["t", "who", "event", "status", "body"]
    assert event["who"] == "engine:1"
    assert event["body"] == {"a": [1]}


def test_threads_and_processes_share_a_journal(tmp_path: Path) -> None:
    """No line is torn or lost when several processes' threads write at once."""
    path = tmp_path / "journal.jsonl"

    def write(record: JournalWriter) -> None:
        for number in range(200):
            record("tick", number=number, padding="x" * 300)

    pids = []
    for child in range(3):
        if (pid := os.fork()) == 0:
            record = JournalWriter(path, f"rank:{child}")
            threads = [threading.Thread(target=write, args=(record,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            os._exit(0)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]
    events = read_journal(path)
    assert len(events) == 1200
    assert {event["event"] for event in events} == {"tick"}


def test_recording_after_close_is_an_error(tmp_path: Path) -> None:
    """A closed writer must not write to whatever its descriptor became."""
    record = JournalWriter(tmp_path / "journal.jsonl", "rank:0")
    record.close()
    record.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        record("late")
