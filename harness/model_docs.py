"""What the scenario language's own docstrings say of its mappings, fields and fault kinds.

The JSON Schema and the reference page take every word from here, so they say what the code says.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping

from pydantic import BaseModel

_ATTRIBUTES = "Attributes:"
_FIELD = re.compile(r"    (?P<names>\w+(?:, \w+)*): (?P<text>.+)")


def summary(model: type[BaseModel]) -> str:
    """Return what a mapping or a kind is: its docstring without the fields, as Markdown."""
    return _markdown(inspect.getdoc(model) or "").partition(_ATTRIBUTES)[0].strip()


def meanings(model: type[BaseModel]) -> Mapping[str, str]:
    """Return what each field means, as one line of Markdown, from the ``Attributes`` of the class.

    Fields that a class inherits are described by the class that has them.
    """
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and "__doc__" in vars(each):
            found |= _attributes(inspect.cleandoc(vars(each)["__doc__"] or ""))
    return {name: text for name, text in found.items() if name in model.model_fields}


def _attributes(doc: str) -> dict[str, str]:
    found: dict[str, str] = {}
    names: list[str] = []
    for line in doc.partition(_ATTRIBUTES)[2].splitlines():
        if begins := _FIELD.fullmatch(line):
            names = begins["names"].split(", ")
            found |= dict.fromkeys(names, begins["text"])
        elif line.strip():
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return {name: _sentence(_markdown(text)) for name, text in found.items()}


def _markdown(text: str) -> str:
    return text.replace("``", "`")


def _sentence(text: str) -> str:
    ended = text if text.endswith((".", ":")) else f"{text}."
    return ended[0].upper() + ended[1:]
