"""Turns scenario files into scenarios, or into every error that they hold.

Whatever stands in a file, the caller gets errors to print and never a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.contracts import Json
from harness.deadline_lint import lint
from harness.errors import UsageError
from harness.file_errors import FileError, Layer, layer_of, locate
from harness.folder_defaults import NAME as DEFAULTS
from harness.folder_defaults import SCENARIOS_ROOT as SCENARIOS_ROOT
from harness.folder_defaults import layers_above, merged
from harness.matrix import Cell, expand
from harness.scenario import Scenario
from harness.validation import validate
from harness.wording import show
from harness.yaml_document import Position, Problem, SyntaxProblem, read_document

MAX_ERRORS = 100  # of one file; nobody reads more before the next check


@dataclass(frozen=True)
class LoadedFile:
    """What one file holds: all its scenarios, or all its errors.

    Attributes:
        warnings: what the scenarios cannot prove as they are; no reason not to run them.
    """

    path: Path
    scenarios: tuple[Scenario, ...]
    errors: tuple[FileError, ...]
    warnings: tuple[FileError, ...] = ()


def discover(paths: Iterable[Path]) -> list[Path]:
    """Return the scenario files that the paths name: files as they are, folders recursively.

    The defaults of folders are no scenarios.

    Raises:
        UsageError: a path does not exist, or a folder holds no scenario.
    """
    found: dict[Path, None] = {}
    for path in paths:
        files, what = [path], ""
        try:
            if path.is_dir():
                files = sorted(file for file in path.rglob("*.yaml") if file.name != DEFAULTS)
                what = "" if files else "no .yaml file in it"
            elif not path.exists():
                what = "nothing there"
        except OSError as error:
            what = str(error.strerror)
        if what:
            raise UsageError(
                f"{path}: expected a scenario file or a folder of them, found {what}. "
                f"Check the path."
            )
        found.update(dict.fromkeys(files))
    return list(found)


def load_file(path: Path) -> LoadedFile:
    """Read one file, with the defaults of its folders, and check every cell of its matrix."""
    if path.name == DEFAULTS:
        message = "expected a scenario, found the defaults of a folder. Name a scenario below it."
        return LoadedFile(path, (), (FileError(path, Position(1, 1), "", message),))
    above, errors = layers_above(path)
    try:
        document, problems = read_document(path)
    except SyntaxProblem as problem:
        error = FileError(path, problem.position, "", problem.message)
        return LoadedFile(path, (), (error, *errors))
    layers = [Layer(path, document), *above]
    if not isinstance(document.data, dict) or not document.data:
        found = "an empty file" if not document.data else show(document.data)
        message = (
            f"expected a mapping with at least proves, transport and expect, found {found}. "
            f"Start with `resync-chaos new`."
        )
        problems.append(Problem((), message))
        return LoadedFile(path, (), (*locate(layers[:1], problems), *errors))
    data = merged(layers)
    cells, matrix_problems = expand(data)
    problems += matrix_problems
    scenarios, doubts = [], []
    for cell in cells or [_without_matrix(data)]:
        scenario, cell_problems = validate(cell.data)
        if scenario is not None:
            scenarios.append(scenario.named(f"{_stem(path)}{cell.id}", path))
            doubts += _placed(cell, lint(scenario))
        problems += [
            each
            for each in _placed(cell, cell_problems)
            # A value that could not be read was told of already, and broken defaults may have held
            # what is missing.
            if not layer_of(layers, each.place).document.is_refused(each.place)
            and not (errors and each.place == ("transport",) and "transport" not in cell.data)
        ]
    found_errors = locate(layers, problems)
    if errors:  # of the defaults, which are told of once, not with every scenario
        found_errors = tuple(error for error in found_errors if error.path == path)
    all_errors = (*found_errors, *errors)
    if len(all_errors) > MAX_ERRORS:
        found = f"{len(all_errors)} in {path}"
        message = f"expected at most {MAX_ERRORS} errors to show, found {found}. Correct these."
        last = FileError(path, all_errors[MAX_ERRORS].position, "", message)
        all_errors = (*all_errors[:MAX_ERRORS], last)
    if all_errors:
        return LoadedFile(path, (), all_errors)
    return LoadedFile(path, tuple(scenarios), (), locate(layers, doubts))


def _placed(cell: Cell, problems: Iterable[Problem]) -> list[Problem]:
    """Return a cell's problems where their values were written."""
    return [
        Problem(cell.origin(each.place, at_key=each.at_key), each.message, at_key=each.at_key)
        for each in problems
    ]


def _without_matrix(data: Mapping[str, Json]) -> Cell:
    """The file itself as a cell, so that a wrong matrix does not hide what else is wrong."""
    return Cell("", {key: value for key, value in data.items() if key != "matrix"}, {})


def _stem(path: Path) -> str:
    parts = path.resolve().with_suffix("").parts
    folders = parts[:-1]
    if SCENARIOS_ROOT in folders:
        below = len(folders) - folders[::-1].index(SCENARIOS_ROOT)
        return "/".join(parts[below:])
    return parts[-1]
