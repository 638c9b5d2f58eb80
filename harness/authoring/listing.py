"""``resync-chaos list``: themes, what is done in each scenario, and how it last ended."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.authoring import words
from harness.errors import UsageError
from harness.scenario import Scenario

VERDICTS = "verdicts.json"
STYLES = {"pass": "green", "fail": "bold red", "hang": "bold magenta", "invalid": "bold yellow"}
NOT_RUN = "-"
NO_THEME = "(no folder)"


@dataclass(frozen=True)
class LastEnd:
    """How a scenario ended in the last run."""

    verdict: str
    seconds: float


def list_scenarios(
    scenarios: Sequence[Scenario],
    options: argparse.Namespace,
    *,
    console: Console | None = None,
) -> int:
    """Print the scenarios by theme: a table on a terminal, else a line of four columns each.

    Args:
        options: ``out``, the folder of the last run; ``plain``.
        console: where to print; by default stdout.

    Raises:
        UsageError: the last run's ``verdicts.json`` is not one.
    """
    console = console or Console(highlight=False)
    ends = last_ends(options.out)
    if options.plain or not console.is_terminal:
        for line in _plain(scenarios, ends):
            console.print(Text(line), soft_wrap=True)
        return 0
    for theme, members in groupby(scenarios, key=_theme):
        console.print(Text(theme, "bold"))
        console.print(Padding(_table(list(members), ends), (0, 0, 1, 2)))
    console.print(Text(_summary(scenarios, ends, options.out), "dim"))
    return 0


def last_ends(out_dir: Path) -> dict[str, LastEnd]:
    """Return, by scenario, how the last run below ``out_dir`` ended; nothing where none ran.

    Raises:
        UsageError: the file is not what a run writes.
    """
    path = out_dir / VERDICTS
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(each["name"]): LastEnd(str(each["verdict"]), float(each["seconds"]))
            for each in document["scenarios"]
        }
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path}: expected the verdicts of a run, found {type(error).__name__}: {error}. "
            "Run the scenarios again, or name another folder with --out."
        ) from error


def _theme(scenario: Scenario) -> str:
    return scenario.name.partition("[")[0].rpartition("/")[0] or NO_THEME


def _told(scenario: Scenario) -> str:
    return "; ".join(words.happenings(scenario)) or "nothing is done to it"


def _plain(scenarios: Sequence[Scenario], ends: Mapping[str, LastEnd]) -> Iterator[str]:
    """Yield ``name  verdict  seconds  what is done``, the columns aligned."""
    width = max(len(scenario.name) for scenario in scenarios)
    for scenario in scenarios:
        end = ends.get(scenario.name)
        verdict, seconds = (end.verdict, f"{end.seconds:.2f} s") if end else (NOT_RUN, NOT_RUN)
        yield f"{scenario.name:<{width}}  {verdict:<7}  {seconds:>8}  {_told(scenario)}"


def _table(members: Sequence[Scenario], ends: Mapping[str, LastEnd]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(overflow="fold", ratio=3)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(ratio=4)
    for scenario in members:
        end = ends.get(scenario.name)
        name = scenario.name.removeprefix(f"{_theme(scenario)}/")
        table.add_row(
            Text(name),
            Text(end.verdict, STYLES.get(end.verdict, "")) if end else Text(NOT_RUN, "dim"),
            Text(f"{end.seconds:.2f} s" if end else "", "dim"),
            Text(_told(scenario)),
        )
    return table


def _summary(scenarios: Sequence[Scenario], ends: Mapping[str, LastEnd], out_dir: Path) -> str:
    told = f"{len(scenarios)} scenarios"
    known = sum(scenario.name in ends for scenario in scenarios)
    if not known:
        return f"{told}; none of them has run: `resync-chaos run` writes {out_dir / VERDICTS}"
    return f"{told}, {known} of them in the last run of {out_dir}"
