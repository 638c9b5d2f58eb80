"""The attempts of each push, side by side: when each ran and what its requests were answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from reports.story import Span, Story

REQUESTS = ("pause", "flush", "init", "start", "update", "finish", "publish", "resume")
SENDING = ("agree.start", "agree.transfer")  # the steps that an attempt is made of
BETWEEN = ("agree.clean_up", "agree.reconnect")  # and those that lead to another one


@dataclass(frozen=True)
class Attempt:
    """One attempt of one push. Times are those of the story.

    Attributes:
        answers: request -> engine -> what it was answered, in order: ``ok``, ``500``.
        causes: what failed, as the target reported it.
    """

    push: int
    number: int
    begin: float
    end: float
    answers: Mapping[str, Mapping[str, tuple[str, ...]]]
    causes: tuple[str, ...]


def attempts_of(story: Story, pushes: Sequence[Mapping[str, Any]]) -> list[Attempt]:
    """Return every attempt of every push, the closing one included.

    An attempt ends with its last step of sending; cleaning up and reconnecting belong to the next.
    A target that names no such steps is shown as one attempt a push.

    Args:
        pushes: those of ``harness.reporting.result_file.Details``; may be empty.
    """
    told = {push["number"]: push for push in pushes}
    sender = next((span.lane for span in story.spans if span.name == SENDING[0]), "")
    steps = [s for s in story.spans if s.lane == sender and s.name in SENDING + BETWEEN]
    calls = [s for s in story.spans if s.kind == "request"]
    found = []
    for number, begin, end in _pushes(story):
        own = [step for step in steps if begin <= step.begin <= end]
        bounds = _bounds(own, begin, end)
        causes = _causes(told.get(number, {}))
        for index, (first, last) in enumerate(bounds):
            answers = _answers(call for call in calls if first <= call.begin < last)
            why = causes[index] if index < len(causes) else ()
            found.append(Attempt(number, index + 1, first, last, answers, why))
    return found


def _pushes(story: Story) -> list[tuple[int, float, float]]:
    """Return number, begin and end of each push; the harness begins one for its connect too."""
    whole: dict[int, tuple[float, float]] = {}
    for span in story.spans:
        if span.kind == "push" and span.name.startswith("push "):
            number = int(span.name.rpartition(" ")[2])
            end = story.end if span.end is None else span.end
            begin = max(span.begin, whole[number][0]) if number in whole else span.begin
            whole[number] = (begin, end)
    return [(number, *times) for number, times in sorted(whole.items())]


def _bounds(steps: Sequence[Span], begin: float, end: float) -> list[tuple[float, float]]:
    cuts = []
    for cleaning in (step.begin for step in steps if step.name in BETWEEN):
        sent = [s.end or s.begin for s in steps if s.name in SENDING and s.begin < cleaning]
        if sent and max(sent) not in cuts:
            cuts.append(max(sent))
    edges = [begin, *cuts, end]
    return list(pairwise(edges))


def _answers(calls: Iterable[Span]) -> dict[str, dict[str, tuple[str, ...]]]:
    answers: dict[str, dict[str, tuple[str, ...]]] = {}
    for call in calls:
        name = call.name.partition(" ")[0]
        if name in REQUESTS:
            of_engine = answers.setdefault(call.name, {})
            said = call.status or ("ok" if call.end is not None else "no answer")
            of_engine[call.lane] = (*of_engine.get(call.lane, ()), said)
    return dict(sorted(answers.items(), key=lambda each: REQUESTS.index(each[0].split()[0])))


def _causes(push: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the causes of each attempt, in words, as rank 0 reported them."""
    ranks = push.get("ranks", {})
    told = ranks.get("0", {}).get("result", {}).get("causes", [])
    if isinstance(told, list):
        return [
            tuple(_in_words(cause) for cause in each) for each in told if isinstance(each, list)
        ]
    return []


def _in_words(cause: Any) -> str:
    if isinstance(cause, Mapping):
        return ", ".join(
            f"{key} {value}" for key, value in cause.items() if value not in (None, "")
        )
    return str(cause)
