"""``defaults.yaml``: what the scenarios of one folder, and of those below it, have in common.

It may set what a run is made in (``ALLOWED``), never what happens in it or what is expected. Key
by key, also inside a mapping, the nearest file wins, and a scenario's own keys win over all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from harness.contracts import Json
from harness.file_errors import FileError, Layer, locate
from harness.scenario import SETTING, Scenario
from harness.validation import field_problems
from harness.wording import near, show
from harness.yaml_document import Document, Problem, SyntaxProblem, read_document

NAME = "defaults.yaml"
ALLOWED = (*SETTING, "deadline_s")
# The folder that holds one of these is the last that is looked at.
_ROOTS = (".git", "pyproject.toml")
SCENARIOS_ROOT = "scenarios"  # names of scenarios start below the nearest folder of this name


def layers_above(path: Path) -> tuple[list[Layer], list[FileError]]:
    """Return the defaults that hold for a scenario file, the nearest first, and their errors.

    Folders are looked at from the file's own up to the nearest one called ``scenarios``, or up to
    the root of the project (with ``.git`` or ``pyproject.toml``). Where there is neither, only the
    file's own folder counts.
    """
    layers: list[Layer] = []
    errors: list[FileError] = []
    for folder in _folders(path):
        defaults = folder / NAME
        try:
            status = defaults.stat()
        except OSError:
            continue
        layer, found = _read(defaults, status.st_mtime_ns, status.st_size)
        layers.append(layer)
        errors += found
    return layers, errors


def merged(layers: Sequence[Layer]) -> Mapping[str, Json]:
    """Return the values of all layers together; earlier ones win, key by key."""
    values: Json = {}
    for layer in reversed(layers):
        if isinstance(layer.document.data, dict):
            values = _over(layer.document.data, values)
    found: Mapping[str, Json] = values
    return found


def _over(near_values: Json, far_values: Json) -> Json:
    if not isinstance(near_values, dict) or not isinstance(far_values, dict):
        return near_values
    both = {
        key: _over(near_values[key], far_values[key]) for key in far_values if key in near_values
    }
    return {**far_values, **near_values, **both}


def _folders(path: Path) -> Iterator[Path]:
    """Yield the folders whose defaults count; shown as the file's own path is."""
    folder = path.parent
    for _ in range(_depth(path.absolute().parent)):
        yield folder
        folder = folder.parent if folder.name not in ("", "..") else folder / ".."


@lru_cache(maxsize=1024)
def _depth(folder: Path) -> int:
    """Return how many folders count, from this one upwards."""
    for depth, each in enumerate((folder, *folder.parents), 1):
        if each.name == SCENARIOS_ROOT or any((each / root).exists() for root in _ROOTS):
            return depth
    return 1


@lru_cache(maxsize=1024)
def _read(path: Path, mtime_ns: int, size: int) -> tuple[Layer, tuple[FileError, ...]]:
    """Read one file. Time and size are keys of the cache: a file that changed is read again."""
    try:
        document, problems = read_document(path)
    except SyntaxProblem as problem:
        error = FileError(path, problem.position, "", problem.message)
        return Layer(path, Document(data=None)), (error,)
    layer = Layer(path, document)
    if document.data is not None and not isinstance(document.data, dict):
        step = "Write key: value pairs."
        message = f"expected a mapping of defaults, found {show(document.data)}. {step}"
        return layer, locate([layer], [*problems, Problem((), message)])
    for key, value in (document.data or {}).items():
        if key in ALLOWED:
            problems += field_problems(key, value)
        else:
            problems.append(Problem((key,), _refused(key), at_key=True))
    kept = [each for each in problems if not document.is_refused(each.place) or each.at_key]
    return layer, locate([layer], kept)


def _refused(key: str) -> str:
    step = near(key, ALLOWED)
    if key in (*Scenario.model_fields, "matrix"):
        step = "Say it in each scenario: a folder sets what runs are made in, not what they do."
    return f"expected a key of {', '.join(ALLOWED)}, found {show(key)}. {step}"
