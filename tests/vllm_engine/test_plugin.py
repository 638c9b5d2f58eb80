"""The vLLM plugin: inert in production, and found by vLLM where the project is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_engine import plugin

ROOT = Path(__file__).parents[2]

# A vLLM that tells what is asked of it: importing it is what must not happen.
FAKE_FACTORY = """
class WeightTransferEngineFactory:
    _registry = {"nccl": None}

    @classmethod
    def register_engine(cls, name, module, cls_name):
        if name in cls._registry:
            raise ValueError(f"Weight transfer engine '{name}' is already registered.")
        cls._registry[name] = (module, cls_name)
"""
REGISTER = """
import sys
before = set(sys.modules)
from vllm_engine.plugin import register
imported = set(sys.modules) - before
register()
register()
print(sorted(set(sys.modules) - before - imported))
factory = sys.modules.get("vllm.distributed.weight_transfer.factory")
print(sorted(factory.WeightTransferEngineFactory._registry) if factory else None)
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("torch", "vllm")))
"""
FIND = """
from importlib.metadata import entry_points
for each in entry_points(group="vllm.general_plugins", name="resync_chaos"):
    print(each.name, each.value, each.load().__module__)
"""


@pytest.fixture
def fake_vllm(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with the one module of vLLM that the plugin needs."""
    package = tmp_path / "fake" / "vllm" / "distributed" / "weight_transfer"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").write_text("")
    (package / "factory.py").write_text(FAKE_FACTORY)
    return tmp_path / "fake"


def _python(code: str, *path: Path, **environment: str) -> list[str]:
    """Run code in a fresh interpreter; return the lines that it prints."""
    inherited = {key: value for key, value in os.environ.items() if key != plugin.ENABLED_BY}
    search = {"PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | search | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("environment", [{}, {plugin.ENABLED_BY: ""}], ids=["unset", "empty"])
def test_inert_in_production(fake_vllm: Path, environment: dict[str, str]) -> None:
    """Without the harness's variable it imports nothing and registers nothing."""
    printed = _python(REGISTER, fake_vllm, ROOT, **environment)
    assert printed == ["[]", "None", "[]"]


def test_registers_once_per_process(fake_vllm: Path) -> None:
    """vLLM calls it several times in one process, where a second registration would raise."""
    printed = _python(REGISTER, fake_vllm, ROOT, **{plugin.ENABLED_BY: "1"})
    assert printed[1] == "['cuda_ipc', 'cuda_nccl', 'gloo', 'nccl', 'shared_memory']"


def test_found_where_the_project_is_installed(tmp_path: Path) -> None:
    """The metadata that an installation writes names the plugin as vLLM looks for it."""
    installed = install_metadata(tmp_path)
    printed = _python(FIND, installed, ROOT)
    assert printed == ["resync_chaos vllm_engine.plugin:register vllm_engine.plugin"]


def install_metadata(tmp_path: Path) -> Path:
    """Return a folder with the project's metadata, as an installation would have it.

    Built from a copy, since setuptools writes beside its sources.
    """
    source, installed = tmp_path / "source", tmp_path / "installed"
    installed.mkdir()
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    (source / "vllm_engine").mkdir()
    shutil.copy(ROOT / "vllm_engine" / "__init__.py", source / "vllm_engine")
    code = (
        "import os, sys\n"
        "os.chdir(sys.argv[1])\n"
        "from setuptools import build_meta\n"
        "build_meta.prepare_metadata_for_build_wheel(sys.argv[2])"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(source), str(installed)],
        capture_output=True,
        timeout=60,
        check=True,
    )
    return installed
