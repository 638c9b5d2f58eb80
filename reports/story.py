"""What happened in one run, from its journal: spans and marks on lanes, states, tokens served."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from reports.journal_stream import Break, Event

MAX_SPANS = 40_000  # of one journal: more than a screen or a trace viewer can show
MAX_MARKS = 2_000
MAX_BREAKS = 20
MAX_LANES = 1_000
MAX_OPEN = 20_000  # things that have begun and not ended
MAX_HALTS = 20
MAX_TEXT = 2_000  # characters of one foreign text
HARNESS = "harness"
OTHERS = "others"  # the lane of whoever comes when there are too many


class Span(NamedTuple):
    """Something that took time. Times are seconds on the machine's monotonic clock."""

    lane: str  # "rank:0", "engine:1", "engine:1/worker:0"
    kind: str  # push, command, step, call, gather, barrier, data, request, load
    name: str
    begin: float
    end: float | None  # None: it never ended
    status: str  # "" where it ended well or has none: "500", "no answer", "failed"
    to: str = ""  # the lane that a call goes to


class Mark(NamedTuple):
    """Something that happened at one moment."""

    lane: str
    kind: str  # fault, diagnosis, halt, version, started, break
    text: str
    at: float


class Band(NamedTuple):
    """A state that an engine was in: ``paused``, ``session``, ``version``."""

    lane: str
    kind: str
    label: str
    begin: float
    end: float | None


@dataclass
class Served:
    """Tokens that one engine served in a row under one label and from the same weights."""

    lane: str
    push: int
    version: str
    fingerprint: str
    num_tokens: int
    begin: float
    end: float


@dataclass
class Story:
    """One journal, told. Spans are in order of their begin.

    Attributes:
        halts: the ``halt`` events, with the table of who waits for whom.
        num_left_out: spans beyond what is kept; those of the begin and of the end are kept.
        breaks: where the journal was no journal.
    """

    name: str = ""
    proves: str = ""
    begin: float = 0.0
    end: float = 0.0
    lanes: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    halts: list[Event] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)
    num_events: int = 0
    num_breaks: int = 0
    num_left_out: int = 0

    @cached_property
    def by_name(self) -> dict[tuple[str, str, str, str], list[Span]]:
        """Lane, kind, name and the lane that it goes to -> the spans of these, in order."""
        spans: dict[tuple[str, str, str, str], list[Span]] = {}
        for span in self.spans:
            spans.setdefault((span[0], span[1], span[2], span[6]), []).append(span)
        return spans


def tell(events: Iterable[Event | Break]) -> Story:
    """Return the story of a journal's events; it takes bounded memory, however many there are."""
    teller = _Teller()
    for event in events:
        teller.take(event)
    return teller.finish()


class _Teller:
    def __init__(self) -> None:
        self._story = Story()
        self._open: dict[tuple[Any, ...], tuple[str, str, str, float, str]] = {}
        self._head: list[Span] = []
        self._tail: deque[Span] = deque(maxlen=MAX_SPANS // 2)
        self._num_spans = 0
        self._bands: dict[tuple[str, str], tuple[str, float]] = {}
        self._lanes: set[str] = set()
        self._workers: dict[str, int] = {}
        self._served: dict[str, Served] = {}
        self._push = 0
        self._first: float | None = None
        self._last = 0.0

    def take(self, event: Event | Break) -> None:
        story = self._story
        if isinstance(event, Break):
            story.num_breaks += 1
            if len(story.breaks) < MAX_BREAKS:
                story.breaks.append(str(event))
                self._mark(HARNESS, "break", str(event), self._last)
            return
        story.num_events += 1
        at = event["t"]
        if self._first is None or at < self._first:
            self._first = at
        if at > self._last:
            self._last = at
        try:
            if "phase" in event:
                self._phase(event, at)
            else:
                self._moment(event, at)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
            story.num_breaks += 1
            if len(story.breaks) < MAX_BREAKS:
                story.breaks.append(f"an event of an unknown shape: {str(event)[:200]}")

    # ---- what takes time ----

    def _phase(self, event: Event, at: float) -> None:
        kind, who = event["event"], self._place(event["who"])
        lane, name, key, to = who, kind, None, ""
        if kind == "step":
            name = event["name"]
            if name == "request":
                kind, name, to = "call", event["action"], f"engine:{event['engine']}"
                key = event["engine"]
        elif kind == "gather":
            name = event["tensor"]
        elif kind == "request":
            key = event["id"]
            name = event["point"].removeprefix("engine.")
            if event.get("session") == "draft":
                name += " (draft)"
            if event.get("load"):
                kind = "load"
        elif kind == "data_plane":
            kind, name, key = "data", event["op"], event["seq"]
            lane = self._worker_lane(who, event)
        elif kind == "command":
            name = event["command"]
            if name == "connect" and event["phase"] == "begin":  # a rank's first command
                self._end_of_process(who, at)
        elif kind == "push":
            self._push = int(event["number"])
            name = f"push {self._push}"
        elif kind != "barrier":  # of a later version: shown, under its name
            kind = "step"
        name = name[:MAX_TEXT]
        self._lanes.add(lane)
        where = (lane, kind, name, key)
        if event["phase"] == "begin":
            if (before := self._open.pop(where, None)) is not None:
                self._cut(kind, before, at)
            if len(self._open) < MAX_OPEN:
                self._open[where] = (lane, kind, name, at, to)
            return
        begun = self._open.pop(where, None)
        status = self._status(event)
        self._keep(Span(lane, kind, name, at if begun is None else begun[3], at, status, to))
        if kind == "request":
            self._state(lane, name, status, at)

    def _cut(self, kind: str, begun: tuple[str, str, str, float, str], at: float) -> None:
        """Keep a span whose like begins before it ended: a push begins again after its connect."""
        lane, _, name, begin, to = begun
        if kind == "push":
            self._keep(Span(lane, kind, f"connect before {name}", begin, at, ""))
        else:
            self._keep(Span(lane, kind, name, begin, None, "no answer", to))

    def _place(self, who: str) -> str:
        """Return the lane of a process: its own, as long as there are not too many."""
        if who not in self._lanes:
            if len(self._lanes) >= MAX_LANES:
                return OTHERS
            self._lanes.add(who)
        return who

    @staticmethod
    def _status(event: Event) -> str:
        if event["event"] == "request":
            status = event["status"]
            return "" if status == 200 else "no answer" if status is None else str(status)[:20]
        return "failed" if event.get("ok") is False else ""

    def _worker_lane(self, who: str, event: Event) -> str:
        """Return the lane of the worker that a data plane's rank stands for."""
        role, _, index = who.partition(":")
        if role != "engine" or not event.get("rank"):
            return who
        worker = (event["rank"] - 1) % self._workers.get(who, 1)
        return f"{who}/worker:{worker}" if index else who

    def _keep(self, span: Span) -> None:
        self._num_spans += 1
        if len(self._head) < MAX_SPANS // 2:
            self._head.append(span)
        else:
            self._tail.append(span)

    # ---- what an engine is in ----

    def _state(self, lane: str, name: str, status: str, at: float) -> None:
        if status:
            return
        if name == "pause":
            self._enter(lane, "paused", "paused", at)
        elif name == "resume":
            self._leave(lane, "paused", at)
        elif name.startswith("start"):
            self._enter(lane, "session", f"session open{name.removeprefix('start')}", at)
        elif name.startswith("finish"):
            self._leave(lane, "session", at)

    def _enter(self, lane: str, kind: str, label: str, at: float) -> None:
        if self._bands.get((lane, kind), ("",))[0] != label:
            self._leave(lane, kind, at)
            self._bands[lane, kind] = (label, at)

    def _leave(self, lane: str, kind: str, at: float | None) -> None:
        begun = self._bands.pop((lane, kind), None)
        if begun is not None and len(self._story.bands) < MAX_MARKS:
            self._story.bands.append(Band(lane, kind, begun[0], begun[1], at))

    # ---- moments ----

    def _moment(self, event: Event, at: float) -> None:
        kind, who = event["event"], self._place(event["who"])
        match kind:
            case "token":
                self._token(event, who, at)
            case "fault":
                worker = event["where"].get("worker")
                lane = who if worker is None else f"{who}/worker:{worker}"
                self._mark(lane, kind, f"{event['at']} {event['label']}", at)
            case "version":
                self._enter(who, "version", str(event["version"])[:MAX_TEXT], at)
                self._mark(who, kind, f"serves version {event['version']}", at)
            case "started":
                self._workers[who] = max(int(event["workers"]), 1)
                for name in ("paused", "session", "version"):
                    self._leave(who, name, at)
                self._end_of_process(who, at)
                self._enter(who, "version", "default", at)
                self._mark(who, kind, "started", at)
            case "diagnosis":
                self._mark(HARNESS, kind, f"{event['kind']}: {event['sentence']}", at)
            case "halt":
                if len(self._story.halts) < MAX_HALTS:
                    self._story.halts.append(event)
                self._mark(HARNESS, kind, f"{event['kind']}: {event['sentence']}", at)
            case "scenario":
                self._story.name = str(event["name"])[:MAX_TEXT]
                self._story.proves = str(event["proves"])[:MAX_TEXT]
            case _:
                self._mark(who, kind, kind, at)

    def _mark(self, lane: str, kind: str, text: str, at: float) -> None:
        self._lanes.add(lane)
        if len(self._story.marks) < MAX_MARKS:
            self._story.marks.append(Mark(lane, kind[:100], text[:MAX_TEXT], at))

    def _end_of_process(self, who: str, at: float) -> None:
        """End what a process was in: another one has its name now."""
        for where in [key for key in self._open if key[0].partition("/")[0] == who]:
            lane, kind, name, begin, to = self._open.pop(where)
            self._keep(Span(lane, kind, name, begin, at, "cut off", to))

    def _token(self, event: Event, who: str, at: float) -> None:
        version, weights = str(event["version"])[:MAX_TEXT], str(event["fingerprint"])[:100]
        last = self._served.get(who)
        if last is None or (last.version, last.fingerprint, last.push) != (
            version,
            weights,
            self._push,
        ):
            last = Served(who, self._push, version, weights, 0, at, at)
            self._served[who] = last
            if len(self._story.served) < MAX_MARKS:
                self._story.served.append(last)
        last.num_tokens += 1
        last.end = at

    def finish(self) -> Story:
        """Return the story; what is open now never ended."""
        story = self._story
        for lane, kind, name, begin, to in self._open.values():
            self._keep(Span(lane, kind, name, begin, None, "no answer", to))
        for lane, kind in list(self._bands):
            self._leave(lane, kind, None)
        story.spans = sorted([*self._head, *self._tail], key=_by_begin)
        story.marks.sort(key=lambda mark: mark.at)
        story.num_left_out = self._num_spans - len(story.spans)
        story.begin, story.end = self._first or 0.0, self._last
        story.lanes = sorted(
            self._lanes | {served.lane for served in story.served}, key=_lane_order
        )
        return story


def _by_begin(span: Span) -> float:
    return span.begin


def _lane_order(lane: str) -> tuple[int, int, int, str]:
    """Sort the harness first, then ranks, then engines, each followed by its workers."""
    head, _, worker = lane.partition("/")
    role, _, index = head.partition(":")
    place = {HARNESS: 0, "rank": 1, "engine": 2}.get(role, 3)
    number = worker.rpartition(":")[2]
    return (
        place,
        int(index) if index.isdecimal() else -1,
        int(number) if number.isdecimal() else -1,
        lane,
    )
