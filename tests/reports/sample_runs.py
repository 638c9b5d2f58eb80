"""A small run, as reports read it: results, a journal, and a scenario that has no verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sample_results import RESULTS

from harness.contracts import ScenarioResult
from harness.reporting.run_folder import Run, RunInfo, Unfinished

# HTML, a script's end, ANSI, NUL, Markdown, a fence, a lone surrogate, a template, a long line.
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\x1b[31mred\x00\r\n"
    "```\n# head **bold** [link](javascript:alert(3)) {{ 7 * 7 }} ]]> \udc9b \ufffe " + "A" * 2000
)


def event(at: float, who: str, kind: str, /, **fields: Any) -> dict[str, Any]:
    return {"t": at, "who": who, "event": kind} | fields


def span(begin: float, end: float | None, who: str, kind: str, /, **fields: Any) -> list[Any]:
    """Return the events of something that took time; ``None``: its end is not in the journal."""
    begun = event(begin, who, kind, phase="begin", **fields)
    return [begun] if end is None else [begun, event(end, who, kind, phase="end", **fields)]


def request(begin: float, end: float | None, who: str, point: str, status: int | None) -> list[Any]:
    fields = {"id": int(begin * 1000), "point": f"engine.{point}", "session": None}
    events = span(begin, end, who, "request", status=None, **fields)
    if end is not None:
        events[1]["status"] = status
    return events


def call(begin: float, end: float | None, action: str, *, ok: bool = True) -> list[Any]:
    fields = {"name": "request", "engine": 0, "action": action, "limit_s": 1.0}
    events = span(begin, end, "rank:0", "step", **fields)
    if end is not None:
        events[1]["ok"] = ok
    return events


# One push: a start, an update that is refused, a clean-up, a resend that works.
EVENTS = sorted(
    [
        event(10.0, "harness", "scenario", name="session/story", proves="It resends once."),
        event(10.1, "engine:0", "started", workers=2),
        *span(10.2, 11.9, "harness", "push", number=1),
        *span(10.25, 11.8, "rank:0", "command", command="push"),
        *request(10.3, 10.35, "engine:0", "pause", 200),
        *span(10.4, 10.5, "rank:0", "step", name="agree.start"),
        *request(10.41, 10.45, "engine:0", "start", 200),
        *span(10.5, 10.6, "rank:0", "gather", tensor="lm_head.weight"),
        *span(10.5, 10.62, "rank:1", "gather", tensor="lm_head.weight"),
        event(10.65, "engine:0", "fault", fault=0, kind="reject", label="answers 500",
              at="engine.update", count=1, push=1, where={"session": "target"}),
        *call(10.63, 10.69, "update", ok=False),
        *request(10.64, 10.68, "engine:0", "update", 500),
        *span(10.6, 10.7, "rank:0", "step", name="agree.transfer"),
        *span(10.75, 10.8, "rank:0", "step", name="agree.clean_up"),
        *span(10.9, 11.0, "rank:0", "step", name="agree.start"),
        event(10.44, "engine:0", "layers", worker=1, on_meta={"target": [3, 3]}),
        *request(10.91, 10.95, "engine:0", "start", 200),
        *span(11.0, 11.1, "engine:0", "data_plane", op="broadcast", seq=1, bytes=8,
              role="receiver", rank=2, world_size=3),
        *request(11.0, 11.1, "engine:0", "update", 200),
        event(11.09, "engine:0", "layers", worker=1, on_meta={"target": [0, 3]}),
        *request(11.15, 11.2, "engine:0", "finish", 200),
        event(11.19, "engine:0", "layers", worker=1, on_meta={}),
        *span(11.0, 11.25, "rank:0", "step", name="agree.transfer"),
        event(11.3, "engine:0", "token", request="c", index=0, token=4, fingerprint="f0",
              version="default"),
        *request(11.4, 11.5, "engine:0", "publish", 200),
        event(11.45, "engine:0", "version", version="1"),
        *request(11.6, 11.7, "engine:0", "resume", 200),
        event(11.75, "engine:0", "token", request="c", index=1, token=5, fingerprint="f1",
              version="1"),
        event(11.76, "engine:0", "token", request="c", index=2, token=5, fingerprint="f1",
              version="1"),
    ],
    key=lambda each: each["t"],
)  # fmt: skip
# The same without its fault: whatever failed ends well.
CALM_EVENTS = [
    each
    | ({"status": 200} if each.get("status") == 500 else {})
    | ({"ok": True} if "ok" in each else {})
    for each in EVENTS
    if each["event"] != "fault"
]


def lines(events: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in events)


def write_journal(folder: Path, events: Sequence[Any] = EVENTS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "journal.jsonl"
    path.write_bytes(lines(events))
    return path


def make_run(results: Sequence[ScenarioResult] = RESULTS, **fields: Any) -> Run:
    """Return a run of finished scenarios whose journals are not there."""
    info = RunInfo(
        command=("resync-chaos", "run", "scenarios"),
        began="2026-01-02T03:04:05+00:00",
        elapsed_s=12.5,
        versions={"python": "3.11.7", "torch": "2.13.0"},
    )
    given: dict[str, Any] = {"folder": Path("out"), "info": info, "results": tuple(results)}
    return Run(**(given | fields))


def unfinished(journal: Path, name: str = "late/pause") -> Unfinished:
    return Unfinished(
        name=name, path="scenarios/late/pause.yaml", proves="It waits.", journal=journal,
        reason="it was running when the run ended: there is no verdict",
    )  # fmt: skip
