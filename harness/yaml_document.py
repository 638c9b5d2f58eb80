"""Reads one YAML file into plain values, and remembers where in the file each of them stands."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from harness.contracts import Json

Key: TypeAlias = str | int
Place: TypeAlias = tuple[Key, ...]  # the way to a value: keys of mappings, numbers in lists

MAX_BYTES = 128 * 1024  # the catalogue's largest file has some 2 KB
MAX_KEY = 60  # characters of a key in a message
MAX_DEPTH = 20  # a scenario needs 5; deeper nesting is a mistake

# YAML 1.2's core schema: `yes`, `on` and `12:30` are text, which YAML 1.1 would take for others.
_PLAIN: tuple[tuple[re.Pattern[str], Callable[[str], Json]], ...] = (
    (re.compile(r"(?:~|null|)\Z"), lambda text: None),
    (re.compile(r"(?:true|false)\Z"), lambda text: text == "true"),
    (re.compile(r"[-+]?\d{1,18}\Z"), int),
    (re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\Z"), float),
    (re.compile(r"[-+]?\.inf\Z"), lambda text: float(text.replace(".", ""))),
    (re.compile(r"\.nan\Z"), lambda text: float("nan")),
)


_STANDARD_TAGS = tuple(f"tag:yaml.org,2002:{name}" for name in (
    "str", "int", "float", "bool", "null", "map", "seq", "timestamp", "merge", "value"
))  # fmt: skip


def shown_key(key: Key) -> str:
    """Return a key as messages have it: on one line, printable, and not longer than it need be."""
    text = str(key)
    if len(text) <= MAX_KEY and text.isprintable():
        return text
    quoted = json.dumps(text)
    return quoted if len(quoted) <= MAX_KEY else f"{quoted[: MAX_KEY - 3]}..."


@dataclass(frozen=True, order=True)
class Position:
    """Line and column in a file, both from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Problem:
    """What is wrong at one place: ``expected ..., found ... . <next step>``."""

    place: Place
    message: str
    at_key: bool = False  # the key itself is wrong, not its value


@dataclass
class Document:
    """The values of one file, and where the keys and the values stand in it."""

    data: Json
    values: dict[Place, Position] = field(default_factory=dict)
    keys: dict[Place, Position] = field(default_factory=dict)
    refused: set[Place] = field(default_factory=set)  # no plain values, so ``None`` stands there

    def is_refused(self, place: Place) -> bool:
        """Whether the value at the place is refused already, or holds one that is."""
        return bool(place) and any(each[: len(place)] == place for each in self.refused)

    def depth(self, place: Place) -> int:
        """Return how much of the way to a place the document has."""
        return next((n for n in range(len(place), 0, -1) if place[:n] in self.values), 0)

    def position(self, place: Place, *, at_key: bool = False) -> Position:
        """Return where a value (or its key) stands; where it is absent, what would hold it."""
        if at_key and place in self.keys:
            return self.keys[place]
        while place and place not in self.values:
            place = place[:-1]
        return self.values.get(place, Position(1, 1))


class SyntaxProblem(Exception):
    """The text is not YAML that a scenario file may hold."""

    def __init__(self, position: Position, message: str) -> None:
        super().__init__(message)
        self.position = position
        self.message = message


def read_document(path: Path) -> tuple[Document, list[Problem]]:
    """Return the file's values, and what is wrong with their form (duplicate keys, aliases, tags).

    Raises:
        SyntaxProblem: the file cannot be read, or is no YAML at all.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        root = yaml.compose(_read_text(path), Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
        found = " ".join(filter(None, (error.context, error.problem)))
        raise SyntaxProblem(
            position, f"expected valid YAML, found: {found}. Correct the syntax here or just above."
        ) from error
    except (yaml.YAMLError, RecursionError) as error:
        found = str(error).splitlines()[0]
        raise SyntaxProblem(
            Position(1, 1),
            f"expected valid YAML, found: {found}. Write the file anew as plain text.",
        ) from error
    document = Document(data=None)
    if root is None:
        return document, []
    reader = _Reader(document)
    document.data = reader.value(root, ())
    return document, reader.problems


def _read_text(path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():  # a pipe may never end
            raise SyntaxProblem(
                Position(1, 1), "expected a file, found a device or a pipe. Name a file."
            )
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise SyntaxProblem(
                Position(1, 1),
                f"expected at most {MAX_BYTES:,} bytes, found {path.stat().st_size:,}. "
                f"Split it: a scenario is one story.",
            )
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        position = Position(before.count(b"\n") + 1, len(before) - before.rfind(b"\n"))
        raise SyntaxProblem(
            position,
            f"expected UTF-8 text, found byte 0x{error.object[error.start]:02x}. "
            f"Save the file as UTF-8.",
        ) from error
    except IsADirectoryError as error:
        raise SyntaxProblem(
            Position(1, 1), "expected a file, found a directory. Name a file inside it."
        ) from error
    except OSError as error:
        raise SyntaxProblem(
            Position(1, 1),
            f"expected a readable file, found: {error.strerror}. Check the path and its rights.",
        ) from error


class _Reader:
    """Turns nodes into plain values; a node that is not plain becomes ``None`` and a problem."""

    def __init__(self, document: Document) -> None:
        self.problems: list[Problem] = []
        self._document = document
        self._seen: set[int] = set()
        self._told: set[int] = set()

    def value(self, node: Any, place: Place) -> Json:
        """Return the node's value, and note where it stands."""
        if id(node) in self._seen:  # the node stands where its anchor does, not here
            return self._refuse_alias(node, place)
        self._document.values[place] = _start(node)
        if len(place) > MAX_DEPTH:
            found = f"more than {MAX_DEPTH} levels"
            return self._refuse(place, "a flat file", found, "Remove the brackets.")
        self._seen.add(id(node))
        if not node.tag.startswith(_STANDARD_TAGS):
            return self._refuse(place, "plain values", f"the tag {node.tag}", "Remove the tag.")
        if isinstance(node, yaml.MappingNode):
            return dict(self._entries(node, place))
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, i)) for i, item in enumerate(node.value)]
        if node.style in ('"', "'", "|", ">"):
            return node.value
        return _plain(node.value)

    def _entries(self, node: Any, place: Place) -> Iterator[tuple[str, Json]]:
        first: dict[str, Position] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(place, "plain keys", "a nested one", "Write a single word before ':'.")
                continue
            key = str(key_node.value)
            at = (*place, key)
            position = _start(key_node)
            if key in first:
                # The second one is reported where it stands; the first stays in force.
                self._document.keys[at] = position
                line = first[key].line
                message = (
                    f"expected each key once, found {shown_key(key)} again (first in line {line}). "
                    f"Remove one of them."
                )
                self.problems.append(Problem(at, message, at_key=True))
                continue
            first[key] = self._document.keys[at] = position
            yield key, self.value(value_node, at)

    def _refuse_alias(self, node: Any, place: Place) -> None:
        """Refuse an alias; of all aliases of one anchor, tell of the first."""
        if id(node) in self._told:
            self._document.refused.add(place)
            return
        self._told.add(id(node))
        found = f"an alias of what stands in line {_start(node).line}"
        self._refuse(place, "a value written out", found, "Repeat the value.")

    def _refuse(self, place: Place, expected: str, found: str, next_step: str) -> None:
        self._document.refused.add(place)
        message = f"expected {expected}, found {found}. {next_step}"
        self.problems.append(Problem(place, message, at_key=True))


def _start(node: Any) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


def _plain(text: str) -> Json:
    for pattern, convert in _PLAIN:
        if pattern.match(text):
            return convert(text)
    return text
