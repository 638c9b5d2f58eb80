"""`resync` on its own: in a trainer's environment, without anything of ours and without CUDA."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import resync

PACKAGE = Path(resync.__file__).parent
ALLOWED = {"aiohttp", "resync", "torch"} | set(sys.stdlib_module_names)
BLOCKED = ["harness", "fakes", "conformance", "reports", "fastapi", "pydantic", "uvicorn", "vllm"]

IMPORT_ALONE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is not in a trainer's environment")

sys.meta_path.insert(0, Blocked())
import resync
import torch

assert not torch.cuda.is_initialized(), "CUDA was touched"
resync.WeightUpdater(open_channel=None, source=[], transport="ipc")
assert not torch.cuda.is_initialized(), "CUDA was touched"
"""


def imports(path: Path) -> set[str]:
    """Return the top-level packages that a file imports, at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            found.add((node.module or "").partition(".")[0])
    return found


def test_imports() -> None:
    """The module imports torch, one HTTP client, the standard library, and nothing else."""
    files = list(PACKAGE.rglob("*.py"))
    assert len(files) > 10
    assert {path.name: sorted(imports(path) - ALLOWED) for path in files} == {
        path.name: [] for path in files
    }


def test_exports() -> None:
    """What the package says that it exports is there, sorted."""
    assert [name for name in resync.__all__ if not hasattr(resync, name)] == []
    assert resync.__all__ == sorted(resync.__all__)


def test_imported_alone() -> None:
    """It is imported, and an updater made, where none of the harness's packages exists."""
    done = subprocess.run(
        [sys.executable, "-c", f"BLOCKED = {BLOCKED!r}\n{IMPORT_ALONE}"],
        cwd=PACKAGE.parent,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
