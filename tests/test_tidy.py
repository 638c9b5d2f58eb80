"""The style that no linter knows: sizes, who may import whom, and tables that miss nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import resync
from harness.faults import FAULTS
from harness.faults.kind import FaultKind
from reports import REPORTS

ROOT = Path(__file__).parent.parent
PACKAGES = ("resync", "harness", "fakes", "conformance", "reports", "vllm_engine")
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 70

Function = ast.FunctionDef | ast.AsyncFunctionDef

# Package -> modules of ours, outside itself, that its modules may import.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "resync": (),
    "harness": (),
    "fakes": ("harness.contracts",),
    "conformance": ("harness.contracts",),
    "reports": ("harness.contracts", "harness.errors", "harness.reporting"),
    "vllm_engine": ("harness", "fakes"),
}
# What puts parts together, by file or folder: the command line, the parts that it runs, what they
# name as entry points of processes, and the targets, good and known bad, that are made of the
# module under test.
JOINERS: dict[str, tuple[str, ...]] = {
    "harness/reporting/arguments.py": ("reports",),
    "harness/cli.py": ("conformance", "reports"),
    "harness/authoring/push_waits.py": ("resync",),
    "harness/pytest_plugin/": ("reports",),
    "harness/parts.py": ("fakes", "vllm_engine"),
    "fakes/engine/process.py": ("harness",),
    "fakes/megatron/process.py": ("harness",),
    "harness/targets/resync_target.py": ("resync",),
    "conformance/known_bad/": ("resync", "harness.targets"),
}


def _python_files(*folders: str) -> list[str]:
    """Return the files under these folders, and those of the root, relative to the root."""
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in [*paths, *ROOT.glob("*.py")])


ALL_FILES = _python_files(*PACKAGES, "tests")
PACKAGE_FILES = [file for file in ALL_FILES if file.partition("/")[0] in PACKAGES]


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"), filename=file)


def _imports(tree: ast.Module, file: str) -> Iterator[tuple[int, str]]:
    """Yield line and full name of each import, wherever in the file it stands."""
    package = file.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def _forbidden_imports(file: str, tree: ast.Module) -> list[str]:
    own = file.partition("/")[0]
    joined = (part for place, parts in JOINERS.items() if file.startswith(place) for part in parts)
    allowed = (own, *MAY_IMPORT[own], *joined)
    return [
        f"{file}:{line} imports {name}"
        for line, name in _imports(tree, file)
        if name.partition(".")[0] in PACKAGES
        and not any(f"{name}.".startswith(f"{each}.") for each in allowed)
    ]


def _long_functions(tree: ast.Module) -> list[str]:
    return [
        f"{node.name} has {length} lines"
        for node in ast.walk(tree)
        if isinstance(node, Function)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]


def _is_setter(node: Function | ast.ClassDef) -> bool:
    """Whether this is a property's setter: the property has the docstring."""
    return any(isinstance(d, ast.Attribute) and d.attr == "setter" for d in node.decorator_list)


def _undocumented(tree: ast.Module) -> list[str]:
    """Return the public functions, methods and classes of a module that have no docstring."""
    found = []
    pending: list[tuple[str, ast.stmt]] = [("", node) for node in tree.body]
    while pending:
        prefix, node = pending.pop(0)
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None and not _is_setter(node):
            found.append(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            pending += [(f"{prefix}{node.name}.", member) for member in node.body]
    return found


@pytest.mark.parametrize("file", ALL_FILES)
def test_sizes(file: str) -> None:
    """A module holds one idea, and a function fits on a screen."""
    num_lines = len((ROOT / file).read_text(encoding="utf-8").splitlines())
    assert num_lines <= MAX_MODULE_LINES, f"{file} has {num_lines} lines: split it."
    assert _long_functions(_tree(file)) == []


@pytest.mark.parametrize("file", PACKAGE_FILES)
def test_imports(file: str) -> None:
    """Each part stands alone; only the joiners put parts together."""
    assert _forbidden_imports(file, _tree(file)) == []


def test_joiners() -> None:
    """Every joiner exists, and the processes among them are entry points of a run's parts."""
    parts = (ROOT / "harness/parts.py").read_text(encoding="utf-8")
    for place in JOINERS:
        assert (ROOT / place).exists(), f"{place} has gone: take it out of JOINERS."
        if place.startswith("fakes/"):
            assert f'"{place.removesuffix(".py").replace("/", ".")}:main"' in parts


def test_names_say_what_a_module_holds() -> None:
    """No module is a drawer for what found no place."""
    drawers = {"util.py", "utils.py", "helper.py", "helpers.py", "common.py", "misc.py"}
    assert [file for file in ALL_FILES if Path(file).name in drawers] == []


def test_every_fault_is_in_its_table() -> None:
    """Each kind has one file of its name; ``kind.py`` holds what they share."""
    files = {path.stem for path in (ROOT / "harness/faults").glob("*.py")} - {"__init__", "kind"}
    assert {name.rstrip("_") for name in files} == set(FAULTS)  # raise_.py: a keyword
    assert all(issubclass(kind, FaultKind) for kind in FAULTS.values())


def test_every_report_is_in_its_table() -> None:
    """Each module of ``reports`` with a ``write`` is a format of its name, in the table."""
    writers = {
        path.stem
        for path in (ROOT / "reports").glob("*.py")
        if any(
            isinstance(n, Function) and n.name == "write"
            for n in _tree(f"reports/{path.name}").body
        )
    }
    assert writers == set(REPORTS)


@pytest.mark.parametrize("file", [file for file in PACKAGE_FILES if file.startswith("resync/")])
def test_resync_is_documented(file: str) -> None:
    """Whoever reads ``resync`` alone finds a docstring at each public name."""
    assert _undocumented(_tree(file)) == []


def test_resync_exports_what_it_names() -> None:
    """``__all__`` is sorted, and each name in it is there."""
    assert list(resync.__all__) == sorted(resync.__all__)
    assert [name for name in resync.__all__ if not hasattr(resync, name)] == []


CANARIES = [
    # file                      source                              complaints
    ("resync/new.py", "import harness.contracts", ["imports harness.contracts"]),
    ("resync/new.py", "def f():\n    from fakes import oracle", ["imports fakes.oracle"]),
    ("fakes/new.py", "from conformance.engine import x", ["imports conformance.engine.x"]),
    ("fakes/new.py", "from harness import journal", ["imports harness.journal"]),
    ("fakes/new.py", "from harness.contracts import Json", []),
    ("fakes/engine/process.py", "from harness.journal import JournalWriter", []),
    ("fakes/engine/new.py", "from ..model_spec import x\nfrom . import core", []),
    ("conformance/new.py", "import json\nimport fakes", ["imports fakes"]),
    ("harness/new.py", "import fakesy, resync_free", []),
    ("reports/new.py", "import harness.contracts_more", ["imports harness.contracts_more"]),
    ("vllm_engine/new.py", "from fakes.oracle import x\nimport vllm", []),
    ("fakes/new.py", "import vllm_engine.server", ["imports vllm_engine.server"]),
]  # fmt: skip


@pytest.mark.parametrize(("file", "source", "complaints"), CANARIES)
def test_import_canaries(file: str, source: str, complaints: list[str]) -> None:
    """The import rule catches what it is there for, and nothing else."""
    found = _forbidden_imports(file, ast.parse(source))
    assert [line.partition(" ")[2] for line in found] == complaints


def test_size_and_docstring_canaries() -> None:
    """The rules see methods, nested functions and coroutines."""
    body = "        pass\n" * MAX_FUNCTION_LINES
    source = (
        f'class A:\n    """A."""\n    async def long(self):\n{body}    def _private(self): ...\n'
    )
    tree = ast.parse(source)
    assert _long_functions(tree) == [f"long has {MAX_FUNCTION_LINES + 1} lines"]
    assert _undocumented(tree) == ["A.long"]
