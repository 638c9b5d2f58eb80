"""What happened in one run, from its journal: spans and marks on lanes, states, tokens served."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

from reports.journal_stream import Break, Event

MAX_SPANS = 40_000  # of one journal: more than a screen or a trace viewer can show
MAX_MARKS = 2_000
MAX_BREAKS = 20
MAX_LANES = 1_000
MAX_OPEN = 20_000  # things that have begun and not ended
MAX_HALTS = 20
TRIM_EVERY = 10_000  # events
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


_make_span = tuple.__new__  # Span's own takes twice as long, and there are hundreds of thousands


class Mark(NamedTuple):
    """Something that happened at one moment."""

    lane: str
    kind: str  # fault, diagnosis, halt, version, started, break
    text: str
    at: float


class Band(NamedTuple):
    """A state: of an engine ``paused``, ``session``, ``version``; of its worker ``layers``."""

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
    teller.take(events)
    return teller.finish()


class _Teller:
    def __init__(self) -> None:
        self._story = Story()
        self._open: dict[tuple[Any, ...], tuple[str, str, str, float, str]] = {}
        self._spans: list[Span] = []
        self._bands: dict[tuple[str, str], tuple[str, float]] = {}
        self._lanes: set[str] = set()
        self._workers: dict[str, int] = {}
        self._served: dict[str, Served] = {}
        self._push = 0

    def take(self, events: Iterable[Event | Break]) -> None:
        first, last, count = inf, 0.0, 0
        phase, moment = self._phase, self._moment
        for event in events:
            if isinstance(event, Break):
                self._break(str(event))
                self._mark(HARNESS, "break", str(event), last)
                continue
            count += 1
            if count % TRIM_EVERY == 0:
                self._trim()
            at = event["t"]
            if at > last:
                last = at
            if at < first:
                first = at
            try:
                if "phase" in event:
                    phase(event, at)
                else:
                    moment(event, at)
            except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
                self._break(f"an event of an unknown shape: {str(event)[:200]}")
        story = self._story
        story.num_events, story.begin, story.end = count, first if count else 0.0, last

    def _break(self, what: str) -> None:
        self._story.num_breaks += 1
        if len(self._story.breaks) < MAX_BREAKS:
            self._story.breaks.append(what)

    # ---- what takes time ----

    def _phase(self, event: Event, at: float) -> None:
        kind, who = event["event"], event["who"]
        part = None
        if kind == "gather":
            name = event["tensor"]
        elif kind == "request":
            name = event["id"]
        elif kind == "step":
            name = event["name"]
            if name == "request":
                part = (event["engine"], event["action"])
        elif kind == "data_plane":
            name, part = event["op"], (event["seq"], event.get("rank"))
        elif kind == "command":
            name = event["command"]
        else:
            name = event.get("number")
        where = (who, kind, name, part)  # what tells it from all else that is open
        open_ = self._open
        if event["phase"] == "begin":
            if kind == "command" and name == "connect":  # a rank's first command
                self._end_of_process(self._place(who), at)
            if (before := open_.pop(where, None)) is not None:
                self._cut(before, at)
            lane, kind, name, to = self._named(event)
            if len(open_) < MAX_OPEN:
                open_[where] = (lane, kind, name, at, to)
            return
        begun = open_.pop(where, None)
        if begun is None:
            lane, kind, name, to = self._named(event)
            begin = at
        else:
            lane, kind, name, begin, to = begun
        status = ""
        if kind in ("request", "load"):
            if (answer := event["status"]) != 200:
                status = "no answer" if answer is None else str(answer)[:20]
        elif event.get("ok") is False:
            status = "failed"
        self._spans.append(_make_span(Span, (lane, kind, name, begin, at, status, to)))
        if kind == "request":
            self._state(lane, name, status, at)

    def _named(self, event: Event) -> tuple[str, str, str, str]:
        """Return the lane, kind and name of what takes time, and the lane that it goes to."""
        kind, lane = event["event"], self._place(event["who"])
        name, to = kind, ""
        if kind == "step":
            name = event["name"]
            if name == "request":
                kind, name, to = "call", event["action"], f"engine:{event['engine']}"
        elif kind == "gather":
            name = event["tensor"]
        elif kind == "request":
            name = event["point"].removeprefix("engine.")
            if event.get("session") == "draft":
                name += " (draft)"
            if event.get("load"):
                kind = "load"
        elif kind == "data_plane":
            kind, name = "data", event["op"]
            lane = self._worker_lane(lane, event)
            self._lanes.add(lane)
        elif kind == "command":
            name = event["command"]
        elif kind == "push":
            self._push = int(event["number"])
            name = f"push {self._push}"
        elif kind != "barrier":  # of a later version: shown, under its name
            kind = "step"
        if type(name) is not str:
            raise TypeError("a name is no text")
        return lane, kind, name[:MAX_TEXT], to

    def _cut(self, begun: tuple[str, str, str, float, str], at: float) -> None:
        """Keep a span whose like begins before it ended: a push begins again after its connect."""
        lane, kind, name, begin, to = begun
        if kind == "push":
            self._spans.append(Span(lane, kind, f"connect before {name}", begin, at, ""))
        else:
            self._spans.append(Span(lane, kind, name, begin, None, "no answer", to))

    def _place(self, who: str) -> str:
        """Return the lane of a process: its own, as long as there are not too many."""
        if who not in self._lanes:
            if len(self._lanes) >= MAX_LANES:
                who = OTHERS
            self._lanes.add(who)
        return who

    def _worker_lane(self, who: str, event: Event) -> str:
        """Return the lane of the worker that a data plane's rank stands for."""
        role, _, index = who.partition(":")
        if role != "engine" or not event.get("rank"):
            return who
        worker = (event["rank"] - 1) % self._workers.get(who, 1)
        return f"{who}/worker:{worker}" if index else who

    def _trim(self) -> None:
        """Leave out spans in the middle where there are too many."""
        surplus = len(self._spans) - MAX_SPANS
        if surplus > 0:
            del self._spans[MAX_SPANS // 2 : MAX_SPANS // 2 + surplus]
            self._story.num_left_out += surplus

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

    def _layers(self, who: str, event: Event, at: float) -> None:
        """Note which layers of a worker are on meta; nothing is said of one that has its own."""
        lane = self._place(f"{who}/worker:{int(event['worker'])}")
        words = [
            f"{'' if model == 'target' else f'{model}: '}{_on_meta(*counts)}"
            for model, counts in event["on_meta"].items()
        ]
        if words:
            self._enter(lane, "layers", ", ".join(words)[:MAX_TEXT], at)
        else:
            self._leave(lane, "layers", at)

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
            case "layers":
                self._layers(who, event, at)
            case "started":
                self._workers[who] = max(int(event["workers"]), 1)
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
            self._spans.append(Span(lane, kind, name, begin, at, "cut off", to))
        for lane, kind in [key for key in self._bands if key[0].partition("/")[0] == who]:
            self._leave(lane, kind, at)

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
            self._spans.append(Span(lane, kind, name, begin, None, "no answer", to))
        for lane, kind in list(self._bands):
            self._leave(lane, kind, None)
        self._trim()
        story.spans = sorted(self._spans, key=itemgetter(3))  # its begin
        story.marks.sort(key=lambda mark: mark.at)
        story.lanes = sorted(
            self._lanes | {served.lane for served in story.served}, key=_lane_order
        )
        return story


def _on_meta(count: int, num_layers: int) -> str:
    """Say how many layers are on meta; buffers stay there until the finish."""
    if count:
        return f"{count} of {num_layers} layers on meta"
    return "every layer loaded, buffers on meta"


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
