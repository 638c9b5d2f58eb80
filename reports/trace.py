"""``trace.json``: the whole run in Chrome's trace-event format, which Perfetto opens.

Every process of every scenario is a process of the trace, named after both. Slices of one thread of
a trace must nest, so things that overlap are put on threads of their own. A call of a trainer is
tied to the request that the engine saw by a flow.

Source: "Trace Event Format", Google, revision of 2016; the JSON object form.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from harness.reporting.run_folder import Run
from reports.phrases import visible
from reports.stories import Stories
from reports.story import HARNESS, Span, Story

# JSON of a string, at a third of dumps' cost, and in UTF-8: Perfetto leaves \u escapes as they are.
_quote = json.encoder.encode_basestring
# Kind -> name of its threads, in the order in which they are shown.
THREADS = {
    "push": "pushes",
    "command": "commands",
    "step": "main",
    "gather": "main",
    "barrier": "main",
    "data": "data plane",
    "call": "calls",
    "request": "requests",
    "load": "load",
}
PAIRED = ("call", "request")
BANDS = ("version", "paused", "session")
ORDER = (*dict.fromkeys(THREADS.values()), *BANDS)


def write(run: Run, stories: Stories, out_dir: Path) -> Path:
    """Write ``trace.json`` into ``out_dir``, which is made if needed, and return its path.

    Times are whole microseconds since the first event of the run: rounded, slices still nest.

    Raises:
        OSError: ``out_dir`` is not writable.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    path = out_dir / "trace.json"
    journals = [(r.name, r.journal) for r in run.results]
    journals += [(each.name, each.journal) for each in run.unfinished]
    found = [(name, stories.of(journal)) for name, journal in journals]
    found = [(name, story) for name, story in found if story.num_events]
    zero = min((story.begin for _, story in found), default=0.0)
    with path.open("w", encoding="utf-8") as file:
        _write(file, run, sorted(found, key=lambda each: each[1].begin), zero)
    return path


def _write(file: TextIO, run: Run, found: list[tuple[str, Story]], zero: float) -> None:
    versions = ",".join(
        f"{_quote(visible(key))}:{_quote(visible(value))}"
        for key, value in run.info.versions.items()
    )
    file.write(f'{{"displayTimeUnit":"ms","otherData":{{{versions}}},"traceEvents":[\n')
    separator, pid, flow = "", 0, 0
    for name, story in found:
        lines, pid, flow = _events(name, story, zero, pid, flow)
        if lines:
            file.write(separator + ",\n".join(lines))
            separator = ",\n"
    file.write("\n]}\n")


def _events(
    name: str, story: Story, zero: float, last_pid: int, flow: int
) -> tuple[list[str], int, int]:
    """Return the events of one story, and the last process id and flow id that they use."""
    heads = list(dict.fromkeys(_head(lane) for lane in story.lanes)) or [HARNESS]
    pids = {head: last_pid + 1 + number for number, head in enumerate(heads)}
    place = {lane: (pids[_head(lane)], lane.partition("/worker:")[2]) for lane in story.lanes}
    threads, quoted = _Threads(), _Quoted()
    lines, placed = [], []
    of_kind: dict[tuple[str, str], _Rows] = {}
    for span in story.spans:
        lane, kind, what, begin, end, status, _ = span
        if (rows := of_kind.get((lane, kind))) is None:
            pid, worker = place[lane]
            rows = threads.rows(pid, f"worker {worker}" if worker else THREADS[kind])
            of_kind[lane, kind] = rows
        until = story.end if end is None else end
        tid = rows.number(begin, until)
        if kind in PAIRED:
            placed.append((span, rows.pid, tid))
        details = f',"args":{{"status":{quoted[status]}}}' if status else ""
        at = int((begin - zero) * 1e6 + 0.5)
        lines.append(
            f'{{"ph":"X","cat":"{kind}","name":{quoted[what]},"ts":{at},'
            f'"dur":{int((until - zero) * 1e6 + 0.5) - at},"pid":{rows.pid},"tid":{tid}{details}}}'
        )
    for band in story.bands:
        pid, worker = place[band.lane]
        until = story.end if band.end is None else band.end
        thread = f"{band.kind} of worker {worker}" if worker else band.kind
        tid = threads.rows(pid, thread).number(band.begin, until)
        at = int((band.begin - zero) * 1e6 + 0.5)
        lines.append(
            f'{{"ph":"X","cat":"state","name":{quoted[band.label]},"ts":{at},'
            f'"dur":{int((until - zero) * 1e6 + 0.5) - at},"pid":{pid},"tid":{tid}}}'
        )
    for mark in story.marks:
        pid = place[mark.lane][0]
        tid = threads.rows(pid, "main").number(mark.at, mark.at)
        lines.append(
            f'{{"ph":"i","s":"p","cat":{quoted[mark.kind]},'
            f'"name":{quoted[f"{mark.kind}: {mark.text}"]},'
            f'"ts":{int(max(mark.at - zero, 0.0) * 1e6 + 0.5)},"pid":{pid},"tid":{tid}}}'
        )
    for call, request in _pairs(placed):
        flow += 1
        for phase, (span, pid, tid) in (('"s"', call), ('"f","bp":"e"', request)):
            lines.append(
                f'{{"ph":{phase},"id":{flow},"cat":"call","name":"call",'
                f'"ts":{int((span.begin - zero) * 1e6 + 0.5)},"pid":{pid},"tid":{tid}}}'
            )
    return [*_names(name, pids, threads), *lines], last_pid + len(pids), flow


def _head(lane: str) -> str:
    return lane.partition("/")[0]


class _Quoted(dict[str, str]):
    """Text -> the same as JSON; the same few names come again and again."""

    def __missing__(self, text: str) -> str:
        self[text] = found = _quote(visible(text) or "-")
        return found


class _Rows:
    """The threads of one kind of one process: as many as keep its slices apart.

    Attributes:
        ends: of each thread's last slice; those of the threads that follow ``first``.
    """

    def __init__(self, pid: int, first: int) -> None:
        self.pid = pid
        self.first = first
        self.ends: list[float] = []

    def number(self, begin: float, end: float) -> int:
        """Return the thread for a slice; slices come in order of their begin."""
        for row, last in enumerate(self.ends):
            if last <= begin:
                self.ends[row] = end
                return self.first + row
        self.ends.append(end)
        return self.first + len(self.ends) - 1


class _Threads:
    """The threads of all processes of one story."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, str], _Rows] = {}

    def rows(self, pid: int, kind: str) -> _Rows:
        """Return the threads of a kind."""
        if (rows := self._rows.get((pid, kind))) is None:
            place = ORDER.index(kind) if kind in ORDER else len(ORDER) + len(self._rows)
            rows = self._rows[pid, kind] = _Rows(pid, 1 + place * 1000)
        return rows

    @property
    def names(self) -> Iterator[tuple[int, int, str]]:
        """Process, thread, name of each thread."""
        for (pid, kind), rows in self._rows.items():
            for row in range(len(rows.ends)):
                yield pid, rows.first + row, kind if row == 0 else f"{kind} ({row + 1})"


_Placed = tuple[Span, int, int]


def _pairs(placed: list[_Placed]) -> Iterator[tuple[_Placed, _Placed]]:
    """Yield each call with the request at its engine that it became."""
    requests: dict[tuple[str, str], list[_Placed]] = defaultdict(list)
    for each in placed:
        if each[0].kind == "request":
            requests[each[0].lane, each[0].name.partition(" ")[0]].append(each)
    for call in placed:
        span = call[0]
        if span.kind != "call":
            continue
        waiting = requests.get((span.to, span.name), [])
        while waiting and waiting[0][0].begin < span.begin:
            waiting.pop(0)
        if waiting and (span.end is None or waiting[0][0].begin <= span.end):
            yield call, waiting.pop(0)


def _names(name: str, pids: dict[str, int], threads: _Threads) -> Iterator[str]:
    for head, pid in pids.items():
        shown = visible(f"{name} · {head.replace(':', ' ')}")
        yield _metadata("process_name", pid, 0, f'"name":{_quote(shown)}')
        yield _metadata("process_sort_index", pid, 0, f'"sort_index":{pid}')
    for pid, tid, kind in threads.names:
        yield _metadata("thread_name", pid, tid, f'"name":{_quote(kind)}')
        yield _metadata("thread_sort_index", pid, tid, f'"sort_index":{tid}')


def _metadata(name: str, pid: int, tid: int, args: str) -> str:
    return f'{{"ph":"M","name":"{name}","pid":{pid},"tid":{tid},"args":{{{args}}}}}'
