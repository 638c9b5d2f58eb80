"""Where a run went another way than its control, the first place first."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from operator import itemgetter

from reports.story import Span, Story

DIFFERS = -1
_Found = tuple[float, Span, Span | None, int]


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
    faults = [
        Difference(mark.lane, mark.at, None, f"{_lane(mark.lane)}: a fault strikes: {mark.text}")
        for mark in run.marks
        if mark.kind == "fault"
    ]
    told = [*faults, *(_told(*each) for each in _found(run, control, limit))]
    return sorted(told, key=lambda each: each.at)[:limit]


def _found(run: Story, control: Story, limit: int) -> list[_Found]:
    """Return when and where the first spans differ from those of the control, and how often."""
    theirs = control.by_name
    num_alike: dict[tuple[str, str, str, str], int] = {}  # of each thing; `DIFFERS` once it does
    found: list[_Found] = []
    enough = inf  # when the last of those that are wanted came: what begins later comes later
    for span in run.spans:
        if span[3] > enough:
            break
        if span[1] == "load":
            continue
        thing = (span[0], span[1], span[2], span[6])
        index = num_alike.get(thing, 0)
        if index == DIFFERS:
            continue
        same = theirs.get(thing, ())
        calm = same[index] if index < len(same) else None
        if calm is not None and _ending(calm) == _ending(span):
            num_alike[thing] = index + 1
            continue
        num_alike[thing] = DIFFERS
        end = run.end if span.end is None else span.end
        found.append((span.begin if calm is None else end, span, calm, index))
        if len(found) >= limit:
            found = sorted(found, key=itemgetter(0))[:limit]
            enough = found[-1][0]
    return sorted(found, key=itemgetter(0))


def _ending(span: Span) -> str:
    return "never ended" if span.end is None else span.status or "ended well"


def _lane(lane: str) -> str:
    return lane.replace(":", " ").replace("/", " ")


def _told(at: float, span: Span, calm: Span | None, index: int) -> Difference:
    what = f"{_lane(span.lane)}: {span.kind} {span.name}" + (
        f" to {_lane(span.to)}" if span.to else ""
    )
    if calm is None:
        sentence = f"{what} comes {_times(index + 1)}; in the control {_times(index)}"
        return Difference(span.lane, at, None, sentence)
    sentence = f"{what}: {_ending(span)}; in the control: {_ending(calm)}"
    return Difference(span.lane, at, calm.end, sentence)


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
