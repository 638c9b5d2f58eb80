"""What counts as progress of a push, and what is open in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.journal import JournalReader
from harness.monitors.progress import Progress

BEGUN_S = 10.0


class Journal:
    """A journal that a test writes line by line, with the progress that follows it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._reader = JournalReader(path)
        self.progress = Progress(self._reader, last_s=BEGUN_S)

    def add(self, t: float, event: str, who: str = "rank:0", **fields: Any) -> None:
        line = {"t": t, "who": who, "event": event, **fields}
        self._file.write(json.dumps(line).encode() + b"\n")
        self.progress.catch_up()

    def add_bytes(self, data: bytes) -> None:
        self._file.write(data)
        self.progress.catch_up()

    def close(self) -> None:
        self._file.close()
        self._reader.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "journal.jsonl")
    yield made
    made.close()


# fmt: off
MOVES = [
    # id                  event       its fields                                         progress
    ("a-step",           "step",     {"name": "agree.start"},                           True),
    ("a-gather",         "gather",   {"tensor": "embed", "phase": "begin"},             True),
    ("its-end",          "gather",   {"tensor": "embed", "phase": "end"},               True),
    ("a-request",        "request",  {"id": 1, "point": "engine.start", "phase": "begin"}, True),
    ("a-fault",          "fault",    {"fault": 0, "kind": "hang"},                      True),
    ("unknown",          "new",      {},                                                True),
    ("a-token",          "token",    {"fingerprint": "x"},                              False),
    ("the-monitor",      "diagnosis", {"kind": "waiting"},                              False),
    ("the-load",         "request",
     {"id": 1, "point": "engine.completion", "phase": "begin", "load": True},           False),
]
# fmt: on


@pytest.mark.parametrize(
    ("event", "fields", "moves"), [case[1:] for case in MOVES], ids=[case[0] for case in MOVES]
)
def test_what_is_progress(
    journal: Journal, event: str, fields: dict[str, Any], moves: bool
) -> None:
    """Events of the push move it; the request load and its tokens do not."""
    journal.add(12.0, event, **fields)
    assert journal.progress.last_s == (12.0 if moves else BEGUN_S)
    assert len(journal.progress.events) == 1
    journal.add(11.0, event, **fields)  # of another process, written later
    assert journal.progress.last_s == (12.0 if moves else BEGUN_S)


def test_what_is_open(journal: Journal) -> None:
    """Requests, gathers and waits on the data plane are open from their begin to their end."""
    progress = journal.progress
    for who, number in (("engine:0", 1), ("engine:0", 2), ("engine:1", 1)):
        journal.add(11.0, "request", who, id=number, point="engine.update", phase="begin")
    journal.add(11.0, "gather", "rank:0", tensor="embed", phase="begin")
    journal.add(11.0, "data_plane", "rank:0", op="synchronize", phase="begin")
    journal.add(11.0, "data_plane", "rank:0", op="broadcast", phase="begin")  # enqueued only
    assert set(progress.requests) == {("engine:0", 1), ("engine:0", 2), ("engine:1", 1)}
    assert progress.gathers == {"rank:0": "embed"}
    assert set(progress.data_plane) == {"rank:0"}

    journal.add(12.0, "request", "engine:0", id=1, point="engine.update", phase="end")
    journal.add(12.0, "gather", "rank:0", tensor="embed", phase="end")
    journal.add(12.0, "data_plane", "rank:0", op="synchronize", phase="end")
    assert set(progress.requests) == {("engine:0", 2), ("engine:1", 1)}
    assert (progress.gathers, progress.data_plane) == ({}, {})


def test_forget(journal: Journal) -> None:
    """What a process that ended had open is forgotten, and only its own."""
    progress = journal.progress
    for engine in ("engine:1", "engine:10"):
        journal.add(11.0, "request", engine, id=1, point="engine.update", phase="begin")
    for rank in ("rank:0", "rank:1"):
        journal.add(11.0, "gather", rank, tensor="embed", phase="begin")
        journal.add(11.0, "data_plane", rank, op="synchronize", phase="begin")
    for who in ("engine:1", "rank:0", "nobody"):
        progress.forget(who)
    assert set(progress.requests) == {("engine:10", 1)}
    assert set(progress.gathers) == set(progress.data_plane) == {"rank:1"}


def test_unmatched(journal: Journal) -> None:
    """An end without a begin is fine, and a begin without an end stays open."""
    progress = journal.progress
    journal.add(11.0, "request", "engine:0", id=1, point="engine.update", phase="end")
    journal.add(11.0, "gather", "rank:0", tensor="embed", phase="end")
    journal.add(11.0, "data_plane", "rank:0", op="synchronize", phase="end")
    assert (progress.requests, progress.gathers, progress.data_plane) == ({}, {}, {})
    journal.add(12.0, "gather", "rank:0", tensor="embed", phase="begin")
    journal.add(12.0, "gather", "rank:0", tensor="norm", phase="begin")
    assert progress.gathers == {"rank:0": "norm"}


def test_corrupt_lines(journal: Journal) -> None:
    """A line that is no event is kept as one that says so, moves nothing and stops nothing."""
    journal.add(12.0, "step", name="agree.start")
    journal.add_bytes(b'{"t": 99.0, "who": "rank:0"\n\xff\xfe\n[1]\n')
    assert [event["event"] for event in journal.progress.events[1:]] == ["journal.corrupt"] * 3
    assert journal.progress.last_s == 12.0
    journal.add_bytes(b'{"t": 13.0, "who": "rank:0", ')
    assert journal.progress.last_s == 12.0
    journal.add_bytes(b'"event": "step", "name": "publish"}\n')
    assert (journal.progress.last_s, journal.progress.doing["rank:0"]) == (13.0, "publish")


def test_timers(journal: Journal) -> None:
    """A step with a limit is open from its begin to its end, told apart by all that names it."""
    progress = journal.progress
    request = {"name": "request", "engine": 0, "action": "update", "limit_s": 2.0}
    for who in ("rank:0", "rank:1"):
        journal.add(11.0, "step", who, phase="begin", **request)
    journal.add(11.5, "step", phase="begin", **request)  # a second one of the same name
    journal.add(11.5, "step", phase="begin", name="idle", engine=1, limit_s=4.0)
    journal.add(11.5, "step", phase="begin", name="agree.start")  # it has no limit of its own
    update = ("rank:0", "request", 0, "update")
    assert {key: len(events) for key, events in progress.timers.items()} == {
        update: 2, ("rank:1", *update[1:]): 1, ("rank:0", "idle", 1, None): 1,
    }  # fmt: skip
    assert progress.telling == {"rank:0", "rank:1"}

    journal.add(12.0, "step", phase="end", **request)
    journal.add(12.0, "step", phase="end", name="idle", engine=1, ok=True)
    assert [event["t"] for event in progress.timers[update]] == [11.5]
    journal.add(12.0, "step", phase="end", **request)
    journal.add(12.0, "step", phase="end", **request)  # unmatched
    assert set(progress.timers) == {("rank:1", *update[1:])}
    progress.forget("rank:1")
    assert progress.timers == {}


def test_first_mover(journal: Journal) -> None:
    """Who moved first after a stall is found past what is no progress."""
    journal.add(11.0, "step", "rank:0", name="agree.start")
    begin = len(journal.progress.events)
    assert journal.progress.first_mover(begin) is None
    journal.add(12.0, "token", "engine:0", fingerprint="x")
    journal.add(12.0, "diagnosis", "harness", kind="slow")
    journal.add(13.0, "gather", "rank:1", tensor="embed", phase="begin")
    journal.add(13.0, "step", "rank:0", name="agree.start")
    assert journal.progress.first_mover(begin) == "rank:1"
    assert journal.progress.last_s == 13.0


def test_doing(journal: Journal) -> None:
    """Of each process it is known what it did last, in a few words."""
    journal.add(11.0, "step", "rank:0", name="agree.start", phase="begin")
    journal.add(11.0, "gather", "rank:1", tensor="embed", phase="begin")
    journal.add(11.0, "step", "rank:2", name="request", action="update", engine=1, phase="begin")
    journal.add(11.0, "request", "engine:0", id=1, point="engine.update", phase="begin")
    journal.add(12.0, "token", "engine:0", fingerprint="x")
    assert journal.progress.doing == {
        "rank:0": "agree.start",
        "rank:1": "gather embed",
        "rank:2": "update of engine 1",
        "engine:0": "engine.update",
    }
