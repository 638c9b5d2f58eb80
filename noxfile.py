"""The project's sessions. ``nox -s conformance`` is the main job; ``nox -l`` lists them all.

All sessions share one virtual environment, ``.nox/shared``, because torch is large. It is made
afresh whenever something that decides its contents changes, and reused as it is otherwise.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent.resolve()
VENV = ROOT / ".nox" / "shared"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "installed.sha256"
INSTALL = ("-c", "constraints.txt", "-e", ".[harness,dev]")
OUT = "out"
INTERRUPT_S = 30.0  # nox would kill what it runs 0.3 s after Ctrl-C

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["conformance"]
nox.options.default_venv_backend = "none"  # the sessions run in VENV, which `install` makes


@nox.session
def conformance(session: nox.Session) -> None:
    """Check the fakes, run the whole catalogue against the target and print the table."""
    install(session)
    pytest(session, "conformance", "tests/conformance")
    run_scenarios(session)


@nox.session
def scenarios(session: nox.Session) -> None:
    """Run the catalogue alone; options after ``--``, such as ``-k NAME``, go to resync-chaos."""
    install(session)
    run_scenarios(session)


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests on all cores; arguments after ``--`` go to pytest."""
    install(session)
    pytest(session, "tests", *(session.posargs or ["tests"]))


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format and types."""
    install(session)
    run_python(session, "-m", "ruff", "check", ".")
    run_python(session, "-m", "ruff", "format", "--check", ".")
    run_python(session, "-m", "mypy")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure our speed beside the reference's; arguments after ``--`` go to the benchmark."""
    install(session)
    run_python(session, "-m", "harness.bench", *session.posargs)


def install(session: nox.Session) -> None:
    """Make the shared environment, unless it was made from the same inputs.

    The stamp is written last, so an interrupted installation is never taken for a complete one,
    and a dependency that was dropped does not survive in an old environment.
    """
    wanted = fingerprint()
    if PYTHON.exists() and STAMP.exists() and STAMP.read_text() == wanted:
        return
    session.log(f"installing into {VENV.relative_to(ROOT)}; torch takes a minute")
    if VENV.exists():
        shutil.rmtree(VENV)
    run(session, sys.executable, "-m", "venv", str(VENV))
    run_python(session, "-m", "pip", "install", "--quiet", *INSTALL)
    STAMP.write_text(wanted)


def fingerprint() -> str:
    """Return the hash of what decides the environment: the pins, the interpreter and its place."""
    digest = hashlib.sha256()
    for part in (
        (ROOT / "pyproject.toml").read_bytes(),
        (ROOT / "constraints.txt").read_bytes(),
        sys.version.encode(),
        sys.base_prefix.encode(),
        str(ROOT).encode(),  # an environment, and the editable install in it, cannot be moved
        " ".join(INSTALL).encode(),
    ):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def run_python(session: nox.Session, *arguments: str) -> None:
    """Run the shared environment's Python from the root of the project."""
    run(session, str(PYTHON), *arguments)


def pytest(session: nox.Session, name: str, *arguments: str) -> None:
    """Run pytest on all cores, and leave its JUnit file in ``out/<name>``."""
    junit = f"--junitxml={OUT}/{name}/junit.xml"
    run_python(session, "-m", "pytest", "-n", "auto", "-q", junit, *arguments)


def run_scenarios(session: nox.Session) -> None:
    """Run the catalogue; journals, verdicts and JUnit file go to ``out/scenarios``."""
    command = str(VENV / "bin" / "resync-chaos")
    run(session, command, "run", "scenarios", "--out", f"{OUT}/scenarios", *session.posargs)


def run(session: nox.Session, *command: str) -> None:
    """Run one command; after Ctrl-C it has time to tear its processes down and report."""
    session.run(*command, external=True, interrupt_timeout=INTERRUPT_S)
