"""Whether JSON that was read from a file has the shape that its readers count on.

Pydantic would do, but that it refuses lone surrogates, which engines print and results keep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Shape = Callable[[Any, str], None]  # raises for a value that does not fit, at a place


def of(*kinds: type) -> Shape:
    """Take a value of one of these types; a number must be finite."""

    def check(value: Any, where: str) -> None:
        if type(value) not in kinds or (type(value) is float and not math.isfinite(value)):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{where}: expected {names}, found {str(value)[:80]!r}")

    return check


_LIST, _DICT = of(list), of(dict)


def each(shape: Shape) -> Shape:
    """Take a list of such values."""

    def check(value: Any, where: str) -> None:
        _LIST(value, where)
        for number, item in enumerate(value):
            shape(item, f"{where}[{number}]")

    return check


def mapping(shape: Shape) -> Shape:
    """Take an object whose every value is such."""

    def check(value: Any, where: str) -> None:
        _DICT(value, where)
        for key, item in value.items():
            shape(item, f"{where}.{key}")

    return check


def fields(**known: Shape) -> Shape:
    """Take an object in which these fields, where they are there, are such; others are not seen."""

    def check(value: Any, where: str) -> None:
        _DICT(value, where)
        for key, shape in known.items():
            if key in value:
                shape(value[key], f"{where}.{key}")

    return check


def having(*keys: str, shape: Shape) -> Shape:
    """Take an object that has these fields, and fits."""

    def check(value: Any, where: str) -> None:
        shape(value, where)
        missing = [key for key in keys if key not in value]
        if missing:
            raise ValueError(f"{where}: expected {', '.join(keys)}, found no {', '.join(missing)}")

    return check


def anything(value: Any, where: str) -> None:
    """Take anything: what is in it is somebody else's."""


TEXT, NUMBER, WHOLE, FLAG = of(str), of(int, float), of(int), of(bool)
TEXT_OR_NONE: Shape = of(str, type(None))
OBJECT: Shape = mapping(anything)
KNOWN: Mapping[str, Shape] = {
    "result": fields(
        name=TEXT,
        path=TEXT,
        proves=TEXT,
        verdict=TEXT,
        sentence=TEXT,
        outcomes=each(TEXT),
        attempts=each(WHOLE),
        engines=each(
            fields(index=WHOLE, version=TEXT_OR_NONE, generation=TEXT, weights=TEXT),
        ),
        checks=each(fields(name=TEXT, ok=FLAG, detail=TEXT, waived=TEXT_OR_NONE)),
        seconds=NUMBER,
        total_seconds=NUMBER,
        journal=TEXT,
        evidence=mapping(TEXT),
    ),
    "details": fields(
        scenario=fields(
            trainer=OBJECT,
            engines=OBJECT,
            timeouts=mapping(NUMBER),
            faults=each(OBJECT),
            restarts=each(OBJECT),
            before_connect=each(OBJECT),
        ),
        control=TEXT_OR_NONE,
        pushes=each(
            having(
                "number",
                shape=fields(
                    number=WHOLE,
                    closing=FLAG,
                    ranks=mapping(fields(result=OBJECT)),
                    after=each(
                        having("index", shape=fields(index=WHOLE, sessions=each(FLAG))),
                    ),
                ),
            )
        ),
        weights=mapping(TEXT),
    ),
}
