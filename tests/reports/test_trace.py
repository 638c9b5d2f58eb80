"""``trace.json`` keeps to the rules of Chrome's trace-event format, as Perfetto reads it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from sample_results import make_result
from sample_runs import EVENTS, make_run, span, unfinished, write_journal

from harness.reporting.run_folder import Run
from reports import trace
from reports.stories import Stories

REQUIRED = {
    "X": {"name", "cat", "ts", "dur", "pid", "tid"},
    "i": {"name", "cat", "ts", "pid", "tid", "s"},
    "M": {"name", "pid", "args"},
    "s": {"name", "cat", "ts", "pid", "tid", "id"},
    "f": {"name", "cat", "ts", "pid", "tid", "id", "bp"},
}
METADATA = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def read(run: Run, out_dir: Path) -> list[dict[str, Any]]:
    document = json.loads(trace.write(run, Stories(), out_dir).read_text("utf-8"))
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    events: list[dict[str, Any]] = document["traceEvents"]
    check(events)
    return events


def check(events: list[dict[str, Any]]) -> None:
    """Assert the rules: known phases, required fields, nesting slices, whole flows, named lanes."""
    slices = defaultdict(list)
    flows: dict[int, list[str]] = defaultdict(list)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    for each in events:
        assert each.keys() >= REQUIRED[each["ph"]], each
        assert type(each["pid"]) is int
        assert each["pid"] in processes
        if each["ph"] == "M":
            assert each["name"] in METADATA
            continue
        assert each["ts"] >= 0
        assert (each["pid"], each["tid"]) in named
        if each["ph"] == "X":
            assert each["dur"] >= 0
            slices[each["pid"], each["tid"]].append((each["ts"], each["ts"] + each["dur"]))
        elif each["ph"] in "sf":
            flows[each["id"]].append(each["ph"])
    assert all(phases == ["s", "f"] for phases in flows.values())
    for of_thread in slices.values():
        stack: list[float] = []
        for begin, end in sorted(of_thread, key=lambda s: (s[0], -s[1])):
            while stack and stack[-1] <= begin + 0.05:
                stack.pop()
            assert not stack or end <= stack[-1] + 0.2, "slices of a thread must nest"
            stack.append(end)


def test_a_story(tmp_path: Path) -> None:
    """Spans, marks and states of every process are there, and the call is tied to its request."""
    journal = write_journal(tmp_path / "session/story")
    events = read(make_run([make_result("session/story", journal=journal)]), tmp_path)
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {
        f"session/story · {who}" for who in ("harness", "rank 0", "rank 1", "engine 0")
    }
    (start, finish) = [e for e in events if e["ph"] in "sf"]
    assert (start["ts"], finish["ts"]) == (630000.0, 640000.0)
    assert {e["name"] for e in events if e.get("cat") == "state"} == {
        "default", "1", "paused", "session open", "3 of 3 layers on meta",
        "every layer loaded, buffers on meta",
    }  # fmt: skip
    (on_meta,) = [e for e in events if e["name"] == "3 of 3 layers on meta"]
    assert {
        "ph": "M", "name": "thread_name", "pid": on_meta["pid"], "tid": on_meta["tid"],
        "args": {"name": "layers of worker 1"},
    } in events  # fmt: skip
    assert "fault: engine.update answers 500" in {e["name"] for e in events if e["ph"] == "i"}
    (refused,) = [e for e in events if e["ph"] == "X" and e.get("args") == {"status": "500"}]
    assert (refused["name"], refused["cat"], refused["dur"]) == ("update", "request", 40000.0)


def test_several_stories(tmp_path: Path) -> None:
    """Scenarios share a clock and no process, also one that never ended."""
    journals = [
        write_journal(tmp_path / str(n), [e | {"t": e["t"] + n} for e in EVENTS]) for n in (0, 5)
    ]
    open_ = write_journal(tmp_path / "open", span(13.0, None, "rank:0", "barrier"))
    results = [make_result(f"session/{n}", journal=journal) for n, journal in enumerate(journals)]
    events = read(make_run(results, unfinished=(unfinished(open_),)), tmp_path)
    assert len({e["pid"] for e in events}) == 9
    assert max(e["ts"] for e in events if e["ph"] == "X") > 5e6


def test_overlaps_get_threads_of_their_own(tmp_path: Path) -> None:
    """Calls that are in flight together never share a thread."""
    overlapping = [
        each
        for n in range(5)
        for each in span(
            1.0 + n, 4.0 + n, "rank:0", "step", name="request", engine=n, action="init"
        )
    ]
    journal = write_journal(tmp_path / "a", overlapping)
    events = read(make_run([make_result("session/a", journal=journal)]), tmp_path)
    assert len({e["tid"] for e in events if e["ph"] == "X"}) == 3
