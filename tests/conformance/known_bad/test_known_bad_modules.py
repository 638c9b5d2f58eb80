"""The known-bad modules: small, said what is wrong with, and wrong in one place only."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance.known_bad.patching import put

FOLDER = Path(__file__).parents[3] / "conformance" / "known_bad"
MODULES = sorted(
    path for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "parts", "patching")
)
MAX_LINES = 60


def _function(tree: ast.Module, name: str) -> ast.FunctionDef:
    (found,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_module(path: Path) -> None:
    """It says what is wrong, fits on a screen, and puts nothing in place when it is imported."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    assert len(text.splitlines()) <= MAX_LINES
    assert [argument.arg for argument in _function(tree, "build").args.args] == ["context"]
    at_import = [node for node in tree.body if isinstance(node, ast.Expr | ast.Assign)]
    calls = [each for node in at_import for each in ast.walk(node) if isinstance(each, ast.Call)]
    assert [call for call in calls if getattr(call.func, "id", "") in ("put", "setattr")] == []


def test_put() -> None:
    """It replaces what is there; where nothing is, the good module has changed, which it says."""
    owner = SimpleNamespace(right=1)
    put(owner, "right", 2)
    assert owner.right == 2
    with pytest.raises(AttributeError, match="expected an attribute 'gone' to replace"):
        put(owner, "gone", 2)
