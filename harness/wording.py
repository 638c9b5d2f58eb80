"""How messages about a scenario file say values, names and what was expected."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache

from pydantic_core import ErrorDetails

from harness.contracts import Json

MAX_SHOWN = 60  # characters

# pydantic's error type -> what was expected, and the next step. ``{...}`` come from its context.
_KNOWN: Mapping[str, tuple[str, str]] = {
    "bool_type": ("true or false", "Write one of the two, without quotes."),
    "dict_type": ("a mapping", "Write key: value pairs."),
    "finite_number": ("a finite number", "Write a number of seconds."),
    "float_type": ("a number", "Write it without quotes and units."),
    "greater_than": ("a number greater than {gt:g}", "Raise it."),
    "greater_than_equal": ("a number from {ge:g}", "Raise it."),
    "int_from_float": ("a whole number", "Drop the fraction."),
    "int_type": ("a whole number", "Write it without quotes and units."),
    "less_than_equal": ("a number up to {le:g}", "Lower it."),
    "string_too_short": ("some text", "Say something, or remove the key."),
    "string_type": ("text", "Put it in quotes."),
    "tuple_type": ("a list", "Write [ ] around the entries."),
}
_PATTERNS = {
    "source": ("the address of a public report", "Start it with https://."),
    "target": ("package.module:factory", "Name the factory after a colon."),
}


def show(value: Json) -> str:
    """Return a value as YAML's flow style has it, cut to `MAX_SHOWN` characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def near(name: object, known: Iterable[str]) -> str:
    """Return the next step for an unknown name: the nearest known one, if any is near."""
    close = _nearest(str(name)[:MAX_SHOWN], tuple(known))
    return f"Did you mean {close}?" if close else "Use one of those."


@lru_cache(maxsize=1024)  # the cells of a matrix repeat a mistake
def _nearest(name: str, known: tuple[str, ...]) -> str | None:
    return next(iter(get_close_matches(name, known, n=1)), None)


def unknown(found: object, known: Iterable[str], *, what: str = "one of") -> str:
    """Return the whole message for a name that is not known."""
    names = list(known)
    if len(names) == 1 and what == "one of":
        return f"expected {names[0]}, found {show(found)}. Write that."
    return f"expected {what} {', '.join(names)}, found {show(found)}. {near(found, names)}"


def explain(error: ErrorDetails, known_keys: Iterable[str]) -> str:
    """Return the message for one of pydantic's errors.

    ``known_keys`` are the keys of the mapping that the error is in.
    """
    kind, context = error["type"], error.get("ctx", {})
    key, found = error["loc"][-1] if error["loc"] else "", show(error["input"])
    if kind == "missing":
        return f"expected the key {key}, found none. Add it."
    if kind == "extra_forbidden":
        return unknown(key, known_keys, what="a key of")
    if kind == "literal_error":
        return unknown(error["input"], re.findall(r"'([^']+)'", context["expected"]))
    if kind == "string_pattern_mismatch":
        expected, step = _PATTERNS[str(key)]
    elif kind in _KNOWN:
        expected, step = (text.format(**context) for text in _KNOWN[kind])
    elif kind in ("model_type", "model_attributes_type"):
        expected, step = _KNOWN["dict_type"]
    else:
        expected, step = error["msg"], context.get("step", "Correct the value.")
    return f"expected {expected}, found {found}. {step}"
