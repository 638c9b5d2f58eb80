"""Errors and warnings of scenario files, each at its line and column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.yaml_document import Document, Place, Position, Problem, shown_key


@dataclass(frozen=True, order=True)
class FileError:
    """One error: ``file:line:column: where: expected ..., found .... <next step>``."""

    path: Path
    position: Position
    place: str  # "faults.0.at"; "" for the whole file
    message: str

    def __str__(self) -> str:
        at = f"{self.path}:{self.position.line}:{self.position.column}"
        return f"{at}: {self.place}: {self.message}" if self.place else f"{at}: {self.message}"


@dataclass(frozen=True)
class Layer:
    """One of the files that a scenario's values come from: its own, or the defaults of a folder."""

    path: Path
    document: Document


def layer_of(layers: Sequence[Layer], place: Place) -> Layer:
    """Return the layer that has the value at a place, or most of the way to it."""
    return max(layers, key=lambda layer: layer.document.depth(place))


def locate(layers: Sequence[Layer], problems: Iterable[Problem]) -> tuple[FileError, ...]:
    """Return the problems as errors of the files that they stand in; cells repeat some of them.

    Args:
        layers: the scenario's own file first, then the defaults, the nearest first.
        problems: with their places in the values of all layers together.
    """
    own = layers[0].path
    found = set()
    for problem in problems:
        layer = layer_of(layers, problem.place)
        position = layer.document.position(problem.place, at_key=problem.at_key)
        place = ".".join(map(shown_key, problem.place))
        message = problem.message
        if layer.path != own:
            message += f" It was found with {own}."
        found.add(FileError(layer.path, position, place, message))
    return tuple(sorted(found, key=lambda error: (error.path != own, error)))
