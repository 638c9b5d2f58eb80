"""Where a run went another way than its control, the first place first."""

from __future__ import annotations

from dataclasses import dataclass

from reports.story import Span, Story

COMPARED = ("push", "command", "step", "call", "gather", "barrier", "data", "request")


@dataclass(frozen=True)
class Difference:
    """One difference between a run and its control.

    Attributes:
        at: when, in the run; seconds on its journal's clock.
        control_at: when the control did what the run did not do alike; ``None`` if it never did.
        sentence: what differs.
    """

    lane: str
    at: float
    control_at: float | None
    sentence: str


def differences(run: Story, control: Story, limit: int = 6) -> list[Difference]:
    """Return where a run differs from its control, the first first; empty where nothing does.

    Processes run side by side, so what each does is compared with what the same process did: the
    n-th time that it did a thing must exist in the control and end alike. How long it took, and
    the order of things of different names, are not compared. Of each thing the first is told.
    """
    ours, theirs = run.by_name, control.by_name
    found = [
        Difference(mark.lane, mark.at, None, f"{_lane(mark.lane)}: a fault strikes: {mark.text}")
        for mark in run.marks
        if mark.kind == "fault"
    ]
    for key, spans in ours.items():
        if key[1] not in COMPARED:
            continue
        same = theirs.get(key, ())
        for index, span in enumerate(spans):
            calm = same[index] if index < len(same) else None
            if calm is None or _ending(calm) != _ending(span):
                found.append(_told(run, span, calm, index))
                break
    return sorted(found, key=lambda each: each.at)[:limit]


def _ending(span: Span) -> str:
    return "never ended" if span.end is None else span.status or "ended well"


def _lane(lane: str) -> str:
    return lane.replace(":", " ").replace("/", " ")


def _told(run: Story, span: Span, calm: Span | None, index: int) -> Difference:
    what = f"{_lane(span.lane)}: {span.kind} {span.name}" + (
        f" to {_lane(span.to)}" if span.to else ""
    )
    if calm is None:
        sentence = f"{what} comes {_times(index + 1)}; in the control {_times(index)}"
        return Difference(span.lane, span.begin, None, sentence)
    sentence = f"{what}: {_ending(span)}; in the control: {_ending(calm)}"
    at = run.end if span.end is None else span.end
    return Difference(span.lane, at, calm.end, sentence)


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
