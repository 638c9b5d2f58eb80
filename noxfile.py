"""The project's sessions. ``nox -s conformance`` is the main job; ``nox -l`` lists them all.

All sessions but two share one virtual environment, ``.nox/shared``, because torch is large.
``real_engine`` has its own, with vLLM; ``gpu_night`` uses that one or, where there is a GPU, one
with the build for CUDA. An environment is made afresh whenever something that decides its contents
changes, and reused as it is otherwise.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import nox

ROOT = Path(__file__).parent.resolve()
OUT = "out"
INTERRUPT_S = 30.0  # nox would kill what it runs 0.3 s after Ctrl-C

REAL_SCENARIOS = (
    "scenarios/session/one_failure.yaml",
    "scenarios/session/worker_raises.yaml",
    "scenarios/scrub",
    "scenarios/late/succeeds_late.yaml",
    "scenarios/restart/stale_session.yaml",
    "scenarios/workers",
    "scenarios/controls/believes_replies_today.yaml",
    "scenarios/data_plane/rejected_mid_broadcast.yaml",
    "scenarios/data_plane/yes_without_receiving.yaml",
    "scenarios/degraded/receiver_beside_a_rejection.yaml",
)

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["conformance"]
nox.options.default_venv_backend = "none"  # the sessions run in what `install` makes


@dataclass(frozen=True)
class Environment:
    """One virtual environment.

    Attributes:
        name: of its folder under ``.nox``.
        steps: arguments of pip, one call after the other.
        told: what takes long about it.
    """

    name: str
    steps: tuple[tuple[str, ...], ...]
    told: str

    @property
    def path(self) -> Path:
        """Its folder."""
        return ROOT / ".nox" / self.name

    def program(self, name: str) -> str:
        """Return the path of a program in it."""
        return str(self.path / "bin" / name)


PINNED = ("install", "--quiet", "-c", "constraints.txt")
SHARED = Environment("shared", ((*PINNED, "-e", ".[harness,dev]"),), "torch takes a minute")
REAL = Environment(
    "real",
    (
        # First, since vLLM's own requirement would let pip choose the build.
        (*PINNED, "torch"),
        (*PINNED, "-e", ".[harness,dev,vllm]"),
        # They are built for another torch and fail to import; text models do not need them, and
        # vLLM does without them where they are missing.
        ("uninstall", "--quiet", "--yes", "torchvision", "torchaudio", "torchcodec"),
    ),
    "vLLM takes some three minutes",
)
CUDA = Environment(
    "cuda", ((*PINNED, "-e", ".[harness,dev,vllm-cuda]"),), "vLLM and torch for CUDA take 8 GB"
)


@nox.session
def conformance(session: nox.Session) -> None:
    """Check the fakes, run the whole catalogue against the target and print the table."""
    install(session)
    pytest(session, "conformance", "-n", "auto", "tests/conformance")
    run_scenarios(session)


@nox.session(name="install")
def install_only(session: nox.Session) -> None:
    """Make the environment that the sessions share, and run nothing."""
    install(session)


@nox.session
def scenarios(session: nox.Session) -> None:
    """Run the catalogue alone; options after ``--``, such as ``-k NAME``, go to resync-chaos."""
    install(session)
    run_scenarios(session)


@nox.session
def next_rules(session: nox.Session) -> None:
    """Run the catalogue under the session rules that vLLM is moving to."""
    install(session)
    arguments = ("scenarios", "--engines", "vllm-next", "--out", f"{OUT}/next_rules")
    run(session, SHARED.program("resync-chaos"), "run", *arguments, *session.posargs)


@nox.session
def real_engine(session: nox.Session) -> None:
    """Run checks and some scenarios on real vLLM servers; after ``--``: which, such as scenarios.

    Scenarios run on fake and real engines side by side, and any difference fails. All of them take
    half an hour; by default it is those that only a real engine can vouch for.
    """
    install(session, REAL)
    # One process: every test uses the same few servers.
    pytest(session, "real_engine", "tests/real_engine", environment=REAL)
    chosen = session.posargs or REAL_SCENARIOS
    arguments = ("--engines", "both", "--out", f"{OUT}/real_scenarios")
    run(session, REAL.program("resync-chaos"), "run", *chosen, *arguments)


@nox.session
def gpu_night(session: nox.Session) -> None:
    """Run the GPU suites; after ``--``: which, such as nccl:0. Without a GPU, on the CPU."""
    ask = (sys.executable, "-m", "harness.gpus")
    num_gpus = session.run(*ask, external=True, silent=True)
    environment = CUDA if int(num_gpus) else REAL
    install(session, environment)
    run(session, environment.program("python"), "-m", "harness.gpu_night", *session.posargs)


@nox.session
def known_bad(session: nox.Session) -> None:
    """Run each module with one thing wrong until its first catch; fail if one survives."""
    install(session)
    arguments = ("known-bad", "--out", f"{OUT}/known_bad")
    run(session, SHARED.program("resync-chaos"), *arguments, *session.posargs)


@nox.session
def known_bad_full(session: nox.Session) -> None:
    """Run each of those modules against the whole catalogue: what catches what. Takes hours."""
    install(session)
    arguments = ("known-bad", "--full", "--out", f"{OUT}/known_bad_full")
    run(session, SHARED.program("resync-chaos"), *arguments, *session.posargs)


@nox.session
def known_bad_needed(session: nox.Session) -> None:
    """Run each scenario until it catches one of those modules; fail if one is there for nothing."""
    install(session)
    arguments = ("known-bad", "--needed", "--out", f"{OUT}/known_bad_needed")
    run(session, SHARED.program("resync-chaos"), *arguments, *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests on all cores; arguments after ``--`` go to pytest."""
    install(session)
    pytest(session, "tests", "-n", "auto", *(session.posargs or ["tests"]))


@nox.session
def browser(session: nox.Session) -> None:
    """Open reports in a real browser; where none can be found or fetched, fail and say so."""
    install(session)
    if not any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")):
        fetch = (SHARED.program("python"), "-m", "playwright", "install", "chromium-headless-shell")
        # Without a network there is none to fetch; the tests say what to do then.
        session.run(*fetch, external=True, success_codes=range(256))
    session.env["RESYNC_CHAOS_BROWSER"] = "required"
    pytest(session, "browser", "tests/reports/browser", *session.posargs)


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


@nox.session
def soak(session: nox.Session) -> None:
    """Make 1,000 passing runs, slow ones among them, of which none may be called a hang.

    Arguments after ``--`` go to it, such as ``--runs 200``; runs that went wrong are in
    ``out/soak``.
    """
    install(session)
    run_python(session, "-m", "harness.soak", *session.posargs)


def install(session: nox.Session, environment: Environment = SHARED) -> None:
    """Make an environment, unless it was made from the same inputs.

    The stamp is written last, so an interrupted installation is never taken for a complete one,
    and a dependency that was dropped does not survive in an old environment.
    """
    wanted = fingerprint(environment)
    stamp = environment.path / "installed.sha256"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    session.log(f"installing into {environment.path.relative_to(ROOT)}; {environment.told}")
    if environment.path.exists():
        shutil.rmtree(environment.path)
    run(session, sys.executable, "-m", "venv", str(environment.path))
    for step in environment.steps:
        run(session, environment.program("python"), "-m", "pip", *step)
    stamp.write_text(wanted)


def fingerprint(environment: Environment) -> str:
    """Return the hash of what decides an environment: the pins, the interpreter and its place."""
    digest = hashlib.sha256()
    for part in (
        (ROOT / "pyproject.toml").read_bytes(),
        (ROOT / "constraints.txt").read_bytes(),
        sys.version.encode(),
        sys.base_prefix.encode(),
        str(ROOT).encode(),  # an environment, and the editable install in it, cannot be moved
        str(environment.steps).encode(),
    ):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def run_python(session: nox.Session, *arguments: str, environment: Environment = SHARED) -> None:
    """Run an environment's Python from the root of the project."""
    run(session, environment.program("python"), *arguments)


def pytest(
    session: nox.Session, name: str, *arguments: str, environment: Environment = SHARED
) -> None:
    """Run pytest, and leave its JUnit file in ``out/<name>``.

    In CI, on machines that others load, a test that fails runs once more, which is said; more than
    a few that need it fail the session (tests/conftest.py). Scenarios never run again.
    """
    options = [f"--junitxml={OUT}/{name}/junit.xml"]
    if os.environ.get("CI"):
        options += ["--reruns", "1", "-rR"]
    run_python(session, "-m", "pytest", "-q", *options, *arguments, environment=environment)


def run_scenarios(session: nox.Session) -> None:
    """Run the catalogue; journals, verdicts and JUnit file go to ``out/scenarios``."""
    arguments = ("scenarios", "--out", f"{OUT}/scenarios")
    run(session, SHARED.program("resync-chaos"), "run", *arguments, *session.posargs)


def run(session: nox.Session, *command: str) -> None:
    """Run one command; after Ctrl-C it has time to tear its processes down and report."""
    session.run(*command, external=True, interrupt_timeout=INTERRUPT_S)
