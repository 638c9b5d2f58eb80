"""The pytest plugin, in a repository that is not this one: collection, runs, what is printed.

Each test runs pytest as a user does, in a folder with a target and scenarios of its own.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
INSTALLED = bool(importlib.metadata.entry_points(group="pytest11", name="resync_chaos"))
PLUGIN = () if INSTALLED else ("-p", "harness.pytest_plugin")
GOOD = """\
proves: A start that is refused once is followed by one resend.
transport: ipc
faults:
  - {kind: reject, at: engine.start, engine: 0}
expect: {outcome: resumed, attempts: 2, version: "1", generation: running}
"""
MATRIX = GOOD.replace("transport: ipc\n", "matrix: {transport: [ipc, nccl]}\n")
TARGET = """
from harness.targets.resync_target import build
"""
# Resumes although the push failed, as many a module did.
BAD_TARGET = """
from conformance.known_bad.resume_in_finally import build
"""
FILES = {
    "pytest.ini": "[pytest]\naddopts = --strict-markers\n",
    "mine.py": TARGET,
    "bad.py": BAD_TARGET,
    "test_own.py": "def test_own():\n    assert True\n",
    "settings.yaml": "proves: nothing\nport: 80\n",
    "transport.yaml": "transport: ssh\nfaults: []\n",
    "scenarios/theme/good.yaml": GOOD,
    "scenarios/theme/family.yaml": MATRIX,
}
FAILS = GOOD.replace("engine: 0}", "engine: 0, nth: always}").replace(
    'outcome: resumed, attempts: 2, version: "1", generation: running',
    "outcome: raised, attempts: 2, version: default, generation: paused",
)
STAYS = GOOD.replace(
    "transport: ipc\n", "transport: ipc\nonly_as_written: {vllm-next: its rules}\n"
)
HANGS = """\
proves: It ends.
transport: ipc
timeouts: {request_s: 60, process_group_s: 300}
faults:
  - {kind: hang, at: engine.update, engine: 0}
expect: {outcome: resumed, attempts: 2}
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Somebody's repository, with tests and scenarios of its own."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def _pytest(
    folder: Path, *words: str, path: str = str(ROOT), plugin: Sequence[str] = PLUGIN
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "120",
    }
    for inherited in ("PYTEST_ADDOPTS", "PYTEST_TIMEOUT", "PYTEST_XDIST_WORKER", "CI"):
        environment.pop(inherited, None)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def _left_behind(folder: Path) -> list[str]:
    """Return the processes that still run in the folder; launchers and scenarios would."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if Path(process.cwd()).is_relative_to(folder):
                found.append(" ".join(process.cmdline()))
    return found


def _collected(folder: Path, *words: str) -> list[str]:
    done = _pytest(folder, "--collect-only", "-q", *words)
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_entry_point() -> None:
    """The package installs the plugin, and what it names is one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name = project["entry-points"]["pytest11"]["resync_chaos"]
    assert hasattr(importlib.import_module(name), "pytest_collect_file")


def test_plugin_is_light() -> None:
    """Those who only have it installed pay nothing: no torch, no pydantic, no scenario is read."""
    code = (
        "import sys; import harness.pytest_plugin; "
        "print([n for n in ('torch', 'pydantic', 'yaml', 'rich') if n in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


# fmt: off
COLLECTED = [
    # id, arguments, what is collected
    ("all", [], [
        "scenarios/theme/family.yaml::family[ipc]",
        "scenarios/theme/family.yaml::family[nccl]",
        "scenarios/theme/good.yaml::good",
        "test_own.py::test_own",
    ]),
    ("one-file", ["scenarios/theme/good.yaml"], ["scenarios/theme/good.yaml::good"]),
    ("one-cell", ["scenarios/theme/family.yaml::family[nccl]"],
     ["scenarios/theme/family.yaml::family[nccl]"]),
    ("family", ["scenarios/theme/family.yaml::family"],
     ["scenarios/theme/family.yaml::family[ipc]", "scenarios/theme/family.yaml::family[nccl]"]),
    ("by-name", ["-k", "nccl"], ["scenarios/theme/family.yaml::family[nccl]"]),
    ("by-transport", ["-m", "transport_nccl"], ["scenarios/theme/family.yaml::family[nccl]"]),
    ("by-fault-and-theme", ["-m", "fault_reject and theme_theme and not transport_nccl"],
     ["scenarios/theme/family.yaml::family[ipc]", "scenarios/theme/good.yaml::good"]),
    ("none-of-them", ["-m", "not resync_chaos"], ["test_own.py::test_own"]),
]
# fmt: on


@pytest.mark.parametrize(
    ("words", "ids"), [case[1:] for case in COLLECTED], ids=[case[0] for case in COLLECTED]
)
def test_collection(words: list[str], ids: list[str], repository: Path) -> None:
    """Scenarios and cells have stable ids and markers; other YAML and tests are left alone."""
    assert _collected(repository, *words) == ids


def test_our_own_tests_files(repository: Path) -> None:
    """What keeps the scenario files among this project's tests from being taken for tests works."""
    (repository / "tests/deep").mkdir(parents=True)
    (repository / "tests/deep/good.yaml").write_text(GOOD)
    assert _collected(repository, "tests") == ["tests/deep/good.yaml::good"]
    (repository / "tests/conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    assert _collected(repository, "tests") == []


def test_installed(repository: Path, tmp_path: Path) -> None:
    """With the package installed, no option is needed."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    installed = tmp_path / "site" / "resync_chaos-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: resync-chaos\nVersion: 0\n")
    lines = [f"{name} = {module}\n" for name, module in table["pytest11"].items()]
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{''.join(lines)}")
    words = ["--collect-only", "-q", "-m", "transport_nccl"]
    done = _pytest(repository, *words, path=f"{ROOT}:{installed.parent}", plugin=[])
    assert "scenarios/theme/family.yaml::family[nccl]" in done.stdout.splitlines()


def test_named_files_are_always_taken(repository: Path) -> None:
    """A file that is named must be a scenario, whatever it says of itself."""
    done = _pytest(repository, "settings.yaml")
    assert done.returncode == 2
    assert "settings.yaml:2:1: port: expected a key of " in done.stdout


def test_errors_of_files(repository: Path) -> None:
    """A broken file is a collection error with the messages of `check`, all of them."""
    broken = repository / "scenarios/broken.yaml"
    broken.write_text("proves: It holds.\nexpect: {outcome: resumd}\nfautls: []\ntransport: ipc\n")
    done = _pytest(repository, "scenarios")
    assert done.returncode == 2
    at = "scenarios/broken.yaml"
    assert (
        f"{at}:2:19: expect.outcome: expected one of resumed, raised, degraded, deadlock, mixed, "
        'found "resumd". Did you mean resumed?\n'
    ) in done.stdout
    assert f"{at}:3:1: fautls: expected a key of " in done.stdout
    assert "Traceback" not in done.stdout
    assert "ERROR scenarios/broken.yaml" in done.stdout


ON_NEXT = [
    "scenarios/theme/family.yaml::family@vllm-next[ipc]",
    "scenarios/theme/family.yaml::family@vllm-next[nccl]",
    "scenarios/theme/good.yaml::good@vllm-next",
]
LEFT_OUT = "left out: theme/stays: its rules"


def test_engines(repository: Path) -> None:
    """Scenarios move to the chosen engines; one that cannot is deselected, and it says why."""
    (repository / "scenarios/theme/stays.yaml").write_text(STAYS)
    done = _pytest(repository, "--collect-only", "-q", "--resync-engines", "vllm-next", "scenarios")
    lines = done.stdout.splitlines()
    assert [line for line in lines if "::" in line] == ON_NEXT
    assert LEFT_OUT in lines
    assert lines[-1].startswith("3/4 tests collected (1 deselected)")
    assert len(_collected(repository, "--resync-engines", "as-written", "scenarios")) == 4


def test_engines_and_names(repository: Path) -> None:
    """Nobody is told of a scenario that was not asked for; alone, one left out is no success."""
    (repository / "scenarios/theme/stays.yaml").write_text(STAYS)
    words = ("--collect-only", "-q", "--resync-engines", "vllm-next", "scenarios", "-k")
    assert "left out" not in _pytest(repository, *words, "good").stdout
    done = _pytest(repository, *words, "stays")
    assert (done.returncode, LEFT_OUT in done.stdout.splitlines()) == (5, True)


# fmt: off
REFUSED = [
    # id, choice, what is printed
    ("both", "both",
     "expected one of as-written, vllm, vllm-next, found both. Each test runs on one side; "
     "`resync-chaos run --engines both` compares the two."),
    ("unknown", "vlm",
     'expected one of as-written, vllm, vllm-next, found "vlm". Did you mean vllm?'),
]
# fmt: on


@pytest.mark.parametrize(
    ("choice", "printed"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_engines_that_are_none(choice: str, printed: str, repository: Path) -> None:
    """A choice that no test can have is a usage error, before anything is collected."""
    done = _pytest(repository, "--resync-engines", choice)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == f"ERROR: --resync-engines: {printed}\n\n"


@pytest.mark.processes
@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_engines_that_are_not_installed(repository: Path) -> None:
    """Who asks for real engines and has none gets no session that looks passed."""
    done = _pytest(repository, "scenarios/theme/good.yaml", "--resync-engines", "vllm")
    assert "theme/good@vllm: expected vLLM to be installed" in done.stdout
    assert "1 failed" in done.stdout


@pytest.mark.processes
def test_engines_under_xdist(repository: Path) -> None:
    """The workers run them, and their controller says once what was left out."""
    (repository / "scenarios/theme/stays.yaml").write_text(STAYS)
    failing = FAILS.replace("outcome: raised", "outcome: resumed")
    (repository / "scenarios/theme/good.yaml").write_text(failing)
    words = ["-n", "2", "--resync-target", "mine:build", "--resync-engines", "vllm-next"]
    done = _pytest(repository, "-q", *words, "scenarios")
    assert done.stdout.splitlines().count(LEFT_OUT) == 1
    assert done.stdout.splitlines()[-1].startswith("1 failed, 2 passed"), done.stdout
    assert (
        "  run again  resync-chaos run scenarios/theme/good.yaml -k theme/good@vllm-next --engines "
        "vllm-next --target mine:build"
    ) in done.stdout
    assert (
        "  check      expect.outcome: outcome: expected resumed, found raised; rank 0: PushFailed: "
        "push of version 1 failed"
    ) in done.stdout


@pytest.mark.processes
def test_passes(repository: Path) -> None:
    """Scenarios run beside ordinary tests, against the user's own target."""
    done = _pytest(repository, "-q", "--resync-target", "mine:build", "--resync-out", "runs")
    assert done.stdout.splitlines()[-1].startswith("4 passed"), done.stdout
    assert (repository / "runs/theme/family[nccl]/journal.jsonl").exists()


@pytest.mark.processes
def test_passes_under_xdist(repository: Path) -> None:
    """Each worker has a launcher of its own, and nothing stays behind."""
    done = _pytest(repository, "-q", "-n", "2", "--resync-target", "mine:build")
    assert done.stdout.splitlines()[-1].startswith("4 passed"), done.stdout
    workers = sorted(path.parent.name for path in repository.glob("out/pytest/gw*/theme"))
    assert workers
    assert set(workers) <= {"gw0", "gw1"}
    assert _left_behind(repository) == []


@pytest.mark.processes
def test_failure(repository: Path) -> None:
    """It shows sentence, story, checks, journal and the command, and nothing of our code."""
    (repository / "scenarios/theme/fails.yaml").write_text(FAILS)
    words = ["scenarios/theme/fails.yaml", "--resync-target", "bad:build", "--junitxml=j.xml"]
    done = _pytest(repository, *words)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("fail: "))
    block = lines[first : lines.index("", first + 2)] if "" in lines[first + 2 :] else lines[first:]
    shown = "\n".join(block)
    assert "  proves     A start that is refused once is followed by one resend." in shown
    assert (
        "  story      In push 1, every time at engine.start (POST /start_weight_update or "
        "/start_draft_weight_update), engine 0 answers 500."
    ) in shown
    assert "  check      expect.generation: generation: expected paused on every engine" in shown
    assert "  journal    out/pytest/theme/fails/journal.jsonl" in shown
    assert (
        "  run again  resync-chaos run scenarios/theme/fails.yaml -k theme/fails --target bad:build"
    ) in shown
    assert (repository / "out/pytest/theme/fails/journal.jsonl").exists()
    assert not any(word in done.stdout for word in ("Traceback", "session.py", "def runtest"))
    assert "FAILED scenarios/theme/fails.yaml::fails - fail: " in done.stdout
    assert '<property name="verdict" value="fail"' in (repository / "j.xml").read_text()


@pytest.mark.processes
def test_ends_before_pytests_time_out(repository: Path) -> None:
    """A scenario that takes too long is torn down and told of; those after it run."""
    (repository / "scenarios/theme/a_hang.yaml").write_text(HANGS)
    words = ["scenarios/theme/a_hang.yaml", "scenarios/theme/good.yaml", "--timeout", "15"]
    done = _pytest(repository, *words)
    assert "theme/a_hang: expected an end within 12 s, found it running after " in done.stdout
    assert "Raise --timeout, or lower the scenario's time-outs." in done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert "Traceback" not in done.stdout
    assert "Timeout" not in done.stderr
    assert _left_behind(repository) == []


@pytest.mark.processes
def test_a_target_that_is_not_there(repository: Path) -> None:
    """Each scenario fails with the command line's own words."""
    done = _pytest(repository, "scenarios", "--resync-target", "nobody:build")
    told = (
        "target nobody:build: expected a module that can be imported, found ModuleNotFoundError: "
        "No module named 'nobody'. Put its folder on PYTHONPATH, or fix the import."
    )
    assert done.stdout.count(told) == 3
    assert "Traceback" not in done.stdout


@pytest.mark.processes
def test_a_folder_that_cannot_be_made(repository: Path) -> None:
    """--resync-out is checked before anything runs."""
    done = _pytest(repository, "scenarios/theme/good.yaml", "--resync-out", "mine.py/out")
    assert (
        "--resync-out mine.py/out: expected a folder that can be written to, found Not a "
        "directory. Choose another."
    ) in done.stdout
