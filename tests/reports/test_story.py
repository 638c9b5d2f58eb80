"""A journal's story: what took time, on which lane, what engines were in and what they served."""

from __future__ import annotations

import pytest
from sample_runs import EVENTS, call, event, request, span

from reports import story as story_module
from reports.journal_stream import Break
from reports.story import Band, Served, Span, tell


def test_lanes_are_in_order() -> None:
    """The harness, then ranks, then engines, each followed by its workers."""
    events = [
        event(1.0, who, "x") for who in ("engine:10", "engine:2", "rank:11", "rank:3", "harness")
    ]
    fault = event(
        1.0, "engine:2", "fault", at="worker.receive", label="raises", where={"worker": 1}
    )
    lanes = ["harness", "rank:3", "rank:11", "engine:2", "engine:2/worker:1", "engine:10"]
    assert tell([*events, fault]).lanes == lanes


def test_spans() -> None:
    """A call goes to its engine, a refusal keeps its status, a broadcast is its worker's."""
    spans = {(s.kind, s.name, s.begin): s for s in tell(EVENTS).spans}
    assert spans["call", "update", 10.63] == Span(
        "rank:0", "call", "update", 10.63, 10.69, "failed", "engine:0"
    )
    assert spans["request", "update", 10.64].status == "500"
    assert spans["data", "broadcast", 11.0].lane == "engine:0/worker:1"


def test_states() -> None:
    """Bands say when an engine was paused, had a session open, served a version, was on meta."""
    assert tell(EVENTS).bands == [
        Band("engine:0/worker:1", "layers", "3 of 3 layers on meta", 10.44, 11.09),
        Band("engine:0/worker:1", "layers", "every layer loaded, buffers on meta", 11.09, 11.19),
        Band("engine:0", "session", "session open", 10.45, 11.2),
        Band("engine:0", "version", "default", 10.1, 11.45),
        Band("engine:0", "paused", "paused", 10.35, 11.7),
        Band("engine:0", "version", "1", 11.45, None),
    ]


def test_served() -> None:
    """Tokens in a row from the same weights under the same label are one entry."""
    assert tell(EVENTS).served == [
        Served("engine:0", 1, "default", "f0", 1, 11.3, 11.3),
        Served("engine:0", 1, "1", "f1", 2, 11.75, 11.76),
    ]


def test_what_never_ended() -> None:
    """What a process was in when the journal stops has no end."""
    (open_,) = tell(span(1.0, None, "rank:1", "barrier")).spans
    assert (open_.end, open_.status) == (None, "no answer")


def test_a_restart_cuts_off() -> None:
    """An engine that is started again, and a rank that connects again, are new processes."""
    events = [
        event(1.0, "engine:0", "started", workers=1),
        *request(1.1, None, "engine:0", "update", None),
        *span(1.2, None, "rank:0", "command", command="push"),
        event(2.0, "engine:0", "started", workers=1),
        event(2.1, "rank:0", "command", command="connect", phase="begin"),
    ]
    ended = {(s.kind, s.name): (s.end, s.status) for s in tell(events).spans}
    assert ended["request", "update"] == (2.0, "cut off")
    assert ended["command", "push"] == (2.1, "cut off")
    assert ended["command", "connect"] == (None, "no answer")


def test_a_restart_ends_states() -> None:
    """A new engine is neither paused nor in a session, and its workers have their layers."""
    on_meta = {"target": [2, 3], "draft": [1, 1]}
    events = [
        event(1.0, "engine:0", "started", workers=2),
        *request(1.1, 1.2, "engine:0", "start (draft)", 200),
        event(1.2, "engine:0", "layers", worker=0, on_meta=on_meta),
        event(1.2, "engine:1", "layers", worker=0, on_meta={"target": [3, 3]}),
        event(2.0, "engine:0", "started", workers=2),
    ]
    assert {(band.kind, band.label, band.end) for band in tell(events).bands} == {
        ("version", "default", 2.0),
        ("session", "session open (draft)", 2.0),
        ("layers", "2 of 3 layers on meta, draft: 1 of 1 layers on meta", 2.0),
        ("layers", "3 of 3 layers on meta", None),
        ("version", "default", None),
    }


def test_a_connect_is_told_apart_from_its_push() -> None:
    """The harness begins a push twice where a connect comes before it."""
    events = [event(at, "harness", "push", number=1, phase=phase)
              for at, phase in ((1.0, "begin"), (2.0, "begin"), (3.0, "end"))]  # fmt: skip
    names = [(s.name, s.begin, s.end) for s in tell(events).spans]
    assert names == [("connect before push 1", 1.0, 2.0), ("push 1", 2.0, 3.0)]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many spans those of the begin and of the end are kept, and the others counted."""
    monkeypatch.setattr(story_module, "MAX_SPANS", 10)
    events = [each for n in range(100) for each in call(n, n + 0.5, f"call{n}")]
    story = tell(events)
    assert [s.name for s in story.spans] == [f"call{n}" for n in (*range(5), *range(95, 100))]
    assert story.num_left_out == 90


def test_strange_events_are_breaks() -> None:
    """An event whose fields are of another shape is told, and harms nothing else."""
    events = [
        event(1.0, "rank:0", "step", phase="begin"),
        event(1.0, "rank:0", "step", name=["a"], phase="begin"),
        event(1.0, "rank:0", "gather", tensor=["a"], phase="end"),
        event(1.0, "engine:0", "fault", at="x", label="y", where=None),
        event(1.0, "engine:0", "started", workers="many"),
        event(1.0, "engine:0", "layers", worker=0, on_meta=[1]),
        event(1.0, "harness", "push", number=None, phase="begin"),
        Break(7, "oops"),
        *span(1.0, 2.0, "rank:0", "barrier"),
    ]
    story = tell(events)
    assert story.num_breaks == 8
    assert story.breaks[-1] == "the journal is broken at byte 7: oops"
    assert [s.kind for s in story.spans] == ["barrier"]


def test_a_crowd_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names without number, things that never end and halts without end are bounded, too."""
    for name in ("MAX_LANES", "MAX_OPEN", "MAX_MARKS", "MAX_HALTS"):
        monkeypatch.setattr(story_module, name, 5)
    halt = {"kind": "deadlock", "sentence": "x", "table": []}
    story = tell(
        each
        for n in range(50)
        for each in (
            *span(float(n), None, f"rank:{n}", "gather", tensor=f"t{n}"),
            *request(n + 0.1, n + 0.2, f"engine:{n % 2}", "pause", 200),
            *request(n + 0.3, n + 0.4, f"engine:{n % 2}", "resume", 200),
            event(n + 0.5, "harness", "halt", **halt),
        )
    )
    assert len(story.lanes) == 6  # and those of others
    assert "others" in story.lanes
    assert (len(story.halts), len(story.bands), len(story.marks)) == (5, 5, 5)
