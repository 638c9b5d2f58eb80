"""Stories made small enough to carry hundreds of them in one page, and packed as text."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import orjson

from reports.phrases import visible
from reports.story import Span, Story

TICK_S = 1e-4  # times in a page are in tenths of a millisecond
MAX_SPANS = 6_000  # of one story in a page
KINDS = ("push", "command", "step", "call", "gather", "barrier", "data", "request", "load")
NEVER = NOWHERE = -1
_KIND_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
LEVEL = 7  # of the compression: 5 takes half as long, and leaves the catalogue above 2 MB


def packed(value: Any) -> str:
    """Return JSON as text that may stand anywhere in a page: deflated, in base 64."""
    try:
        data = orjson.dumps(value)
    except TypeError:  # a number of more than 64 bits, as a journal may have one
        data = json.dumps(value, separators=(",", ":")).encode("ascii")
    return base64.b64encode(zlib.compress(data, LEVEL)).decode("ascii")


def story_as_json(story: Story) -> dict[str, Any]:
    """Return what a timeline draws: columns of numbers, and tables of the texts they stand for.

    Times are ticks since the story's begin; a span that never ended lasts `NEVER`. Begins are
    differences from the span before, which compress best.
    """
    spans = _within_limit(story.spans)
    lanes = {lane: number for number, lane in enumerate(story.lanes)}
    names, answers, zero = _Table(), _Table(), story.begin
    begins = [int((span[3] - zero) / TICK_S + 0.5) for span in spans]
    columns = {
        "l": [lanes[span[0]] for span in spans],
        "k": [_KIND_NUMBERS[span[1]] for span in spans],
        "n": [names[span[2]] for span in spans],
        "b": [at - last for last, at in pairwise((0, *begins))],
        "d": [
            NEVER if span[4] is None else int((span[4] - zero) / TICK_S + 0.5) - at
            for span, at in zip(spans, begins, strict=True)
        ],
        "s": [answers[span[5]] for span in spans],
        "t": [lanes.get(span[6], NOWHERE) for span in spans],
    }
    return {
        "end": _ticks(story.end, story),
        "lanes": [visible(lane) for lane in story.lanes],
        "names": names.texts,
        "answers": answers.texts,
        "spans": columns,
        "marks": [
            [lanes.get(mark.lane, 0), mark.kind, visible(mark.text), _ticks(mark.at, story)]
            for mark in story.marks
        ],
        "bands": [
            [
                lanes.get(band.lane, 0),
                band.kind,
                visible(band.label),
                _ticks(band.begin, story),
                NEVER if band.end is None else _ticks(band.end, story),
            ]
            for band in story.bands
        ],
        "leftOut": story.num_left_out + len(story.spans) - len(spans),
    }


def ticks(at: float, story: Story) -> int:
    """Return a moment of a story in ticks since its begin."""
    return _ticks(at, story)


class _Table(dict[str, int]):
    """Texts and their numbers, in the order in which they came."""

    @property
    def texts(self) -> list[str]:
        return [visible(text) for text in self]

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self)
        return number


def _ticks(at: float, story: Story) -> int:
    return round((at - story.begin) / TICK_S)


def _within_limit(spans: list[Span]) -> list[Span]:
    """Return the first and the last spans; failed ones in between stay as far as there is room."""
    if len(spans) <= MAX_SPANS:
        return spans
    third = MAX_SPANS // 3
    between = (span for span in spans[third:-third] if span.status)
    return [*spans[:third], *_first(between, third), *spans[-third:]]


def _first(spans: Iterator[Span], count: int) -> list[Span]:
    return [span for _, span in zip(range(count), spans, strict=False)]
