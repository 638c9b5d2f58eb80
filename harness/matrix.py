"""Expands the ``matrix`` of a scenario file into cells: one full set of values per combination.

```yaml
matrix:
  faults.0.at: [engine.start, engine.update]     # dotted place: [values]
  transport: [ipc, nccl]
  exclude: [{faults.0.at: engine.start, transport: nccl}]
```

A mapping as a value is merged into the mapping that stands at its place: its keys win. Cells are
named after their values, in the matrix's order: ``[engine.start-ipc]``.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from harness.contracts import Json
from harness.wording import show, unknown
from harness.yaml_document import Place, Problem

EXCLUDE = "exclude"
MAX_CELLS = 1000
MAX_LABEL = 40  # characters of one value in a cell's name


@dataclass(frozen=True)
class Cell:
    """One combination: its values, and where the matrix's own values came from."""

    id: str  # "[engine.start-ipc]"; "" where the file has no matrix
    data: Mapping[str, Json]
    placed: Mapping[Place, Place]  # place in ``data`` -> place of the value inside the matrix

    def origin(self, place: Place, *, at_key: bool = False) -> Place:
        """Return where in the file the value at ``place`` of this cell was written, or its key."""
        if at_key and place in self.placed and isinstance(self.placed[place][-1], int):
            return self.placed[place][:-1]
        for length in range(len(place), 0, -1):
            if place[:length] in self.placed:
                return self.placed[place[:length]] + place[length:]
        return place


@dataclass(frozen=True)
class _Axis:
    name: str
    values: tuple[Json, ...]

    @property
    def place(self) -> Place:
        """Where the values go."""
        parts = self.name.split(".")
        return tuple(int(part) if part.isdigit() else part for part in parts)


def expand(data: Mapping[str, Json]) -> tuple[list[Cell], list[Problem]]:
    """Return the cells of a file in the matrix's order; no cell where the matrix is wrong."""
    if "matrix" not in data:
        return [Cell("", data, {})], []
    base = {key: value for key, value in data.items() if key != "matrix"}
    axes, problems = _axes(data["matrix"], base)
    if problems:
        return [], problems
    excluded, problems = _excluded(data["matrix"].get(EXCLUDE, []), axes)
    if problems:
        return [], problems
    cells = list(_cells(base, axes, excluded))
    ids = [cell.id for cell in cells]
    seen: set[str] = set()
    for cell_id in ids:
        if cell_id in seen:
            message = (
                f"expected cells with different names, found {cell_id} twice. "
                f"Remove the value that is there again."
            )
            return [], [Problem(("matrix",), message)]
        seen.add(cell_id)
    if not cells:
        message = "expected at least one cell, found that all are excluded. Shorten exclude."
        return [], [Problem(("matrix", EXCLUDE), message)]
    return cells, []


def _axes(matrix: Json, base: Mapping[str, Json]) -> tuple[list[_Axis], list[Problem]]:
    if not isinstance(matrix, dict) or not set(matrix) - {EXCLUDE}:
        message = (
            f"expected a mapping of dotted places to lists of values, found {show(matrix)}. "
            f"Write for example: matrix: {{transport: [ipc, nccl]}}."
        )
        return [], [Problem(("matrix",), message)]
    axes, problems = [], []
    num_cells = 1
    for name, values in matrix.items():
        if name == EXCLUDE:
            continue
        if not isinstance(values, list) or not values:
            message = (
                f"expected a list of values, found {show(values)}. "
                f"List every value that {name} takes."
            )
            problems.append(Problem(("matrix", name), message))
            continue
        axis = _Axis(name, tuple(values))
        problem = _misplaced(axis, base)
        if problem:
            problems.append(problem)
        axes.append(axis)
        num_cells *= len(values)
    if num_cells > MAX_CELLS:
        message = f"expected at most {MAX_CELLS} cells, found {num_cells}. Use fewer values."
        problems.append(Problem(("matrix",), message))
    return axes, problems


def _misplaced(axis: _Axis, base: Mapping[str, Json]) -> Problem | None:
    """Return why no value can be put where the axis points. Absent mappings are made."""
    at: Json = base
    for number, key in enumerate(axis.place):
        way = ".".join(map(str, axis.place[:number])) or "the file"
        if isinstance(at, list):
            if isinstance(key, str) or key >= len(at):
                message = (
                    f"expected an entry of {way}, which has {len(at)}, found {key}. "
                    f"Add it, or correct the number."
                )
                return Problem(("matrix", axis.name), message, at_key=True)
            at = at[key]
        elif isinstance(at, dict) or at is None:
            if isinstance(key, int):
                message = (
                    f"expected a key in {way}, found the number {key}. "
                    f"Name a key, or make it a list."
                )
                return Problem(("matrix", axis.name), message, at_key=True)
            at = at.get(key) if at else None
        else:
            message = (
                f"expected a place inside a mapping or a list, found that {way} is {show(at)}. "
                f"End the place there."
            )
            return Problem(("matrix", axis.name), message, at_key=True)
    return None


def _excluded(exclude: Json, axes: list[_Axis]) -> tuple[list[Mapping[str, Json]], list[Problem]]:
    place: Place = ("matrix", EXCLUDE)
    if not isinstance(exclude, list):
        message = (
            f"expected a list of mappings, found {show(exclude)}. Write for example: "
            f"exclude: [{{{axes[0].name}: {show(axes[0].values[0])}}}]."
        )
        return [], [Problem(place, message)]
    by_name = {axis.name: axis for axis in axes}
    exact = {axis.name: {_exactly(value) for value in axis.values} for axis in axes}
    problems = []
    for number, assignment in enumerate(exclude):
        if not isinstance(assignment, dict) or not assignment:
            message = (
                f"expected a mapping of the matrix's places to one value each, "
                f"found {show(assignment)}. Name at least one place."
            )
            problems.append(Problem((*place, number), message))
            continue
        for name, value in assignment.items():
            at = (*place, number, name)
            if name not in by_name:
                problems.append(Problem(at, unknown(name, by_name), at_key=True))
            elif _exactly(value) not in exact[name]:
                known = ", ".join(show(each) for each in by_name[name].values)
                message = (
                    f"expected one of the values {known}, found {show(value)}. "
                    f"Exclude only what the matrix has."
                )
                problems.append(Problem(at, message))
    return exclude, problems


def _cells(
    base: Mapping[str, Json], axes: list[_Axis], excluded: list[Mapping[str, Json]]
) -> Iterator[Cell]:
    left_out = [
        {name: _exactly(value) for name, value in assignment.items()} for assignment in excluded
    ]
    for numbers in product(*(range(len(axis.values)) for axis in axes)):
        chosen = {
            axis.name: axis.values[number] for axis, number in zip(axes, numbers, strict=True)
        }
        exact = {name: _exactly(value) for name, value in chosen.items()}.items()
        if any(each.items() <= exact for each in left_out):
            continue
        data = copy.deepcopy(dict(base))
        placed: dict[Place, Place] = {}
        for axis, number in zip(axes, numbers, strict=True):
            value = copy.deepcopy(axis.values[number])
            placed.update(_put(data, axis.place, value, ("matrix", axis.name, number)))
        labels = [_label(axis.place[-1], chosen[axis.name]) for axis in axes]
        yield Cell(f"[{'-'.join(labels)}]", data, placed)


def _put(data: Json, place: Place, value: Json, origin: Place) -> dict[Place, Place]:
    """Put the value at its place, and return where what was put comes from."""
    made: dict[Place, Place] = {}
    for number, key in enumerate(place[:-1], 1):
        if isinstance(data, dict) and data.get(str(key)) is None:
            data[str(key)] = {}
            made[place[:number]] = origin[:-1]
        data = data[key]
    last = place[-1]
    there = data.get(last) if isinstance(data, dict) else data[int(last)]
    if isinstance(there, dict) and isinstance(value, dict):
        there.update(value)
        return made | {(*place, key): (*origin, key) for key in value}
    data[last] = value
    return {**made, place: origin}


def _label(key: str | int, value: Json) -> str:
    """Return a short, stable name of one value; it depends on nothing but the value and its key."""
    if isinstance(value, bool):
        off = "unpacked" if key == "packed" else f"no_{key}"
        return str(key) if value else off
    label = re.sub(r"[^A-Za-z0-9._+]+", "_", "+".join(_leaves(value))).strip("_.") or "empty"
    if len(label) <= MAX_LABEL:
        return label
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
    return f"{label[: MAX_LABEL - 9]}_{digest}"


def _leaves(value: Json) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from [_label(key, each)] if isinstance(each, bool) else _leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    else:
        yield "none" if value is None else str(value)


def _exactly(value: Json) -> str:
    """Return what only equal values have in common; True and 1 are alike, and not equal."""
    return json.dumps(value, sort_keys=True)
