"""JSON from a file has the shape that its readers count on, or says where it has not."""

from __future__ import annotations

from typing import Any

import pytest

from harness.reporting.shapes import (
    FLAG,
    NUMBER,
    TEXT,
    TEXT_OR_NONE,
    WHOLE,
    Shape,
    each,
    fields,
    having,
    mapping,
)

PAIR = having("a", shape=fields(a=WHOLE, b=each(TEXT_OR_NONE)))


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (TEXT, "\udc9b"),
        (NUMBER, 1),
        (NUMBER, 1.5),
        (PAIR, {"a": 1, "b": ["x", None], "c": object()}),
        (mapping(FLAG), {}),
    ],
)
def test_fits(shape: Shape, value: Any) -> None:
    """What fits is taken; fields that nobody knows are not seen."""
    shape(value, "x")


# fmt: off
WRONG = [
    # shape          value               message
    (TEXT,           1,                  "x: expected str, found '1'"),
    (WHOLE,          True,               "x: expected int, found 'True'"),
    (NUMBER,         float("nan"),       "x: expected int or float, found 'nan'"),
    (PAIR,           {"b": []},          "x: expected a, found no a"),
    (PAIR,           {"a": 1, "b": [1]}, "x.b[0]: expected str or NoneType, found '1'"),
    (PAIR,           [],                 "x: expected dict, found '[]'"),
    (mapping(FLAG),  {"k": 0},           "x.k: expected bool, found '0'"),
]
# fmt: on


@pytest.mark.parametrize(("shape", "value", "message"), WRONG)
def test_does_not_fit(shape: Shape, value: Any, message: str) -> None:
    """What does not is refused with its place."""
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the whole message is compared
        shape(value, "x")
    assert str(error.value) == message
