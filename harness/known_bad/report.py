"""What the trials of known-bad modules found: lines, JSON, Markdown and the docs page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from harness.contracts import Json, ScenarioResult
from harness.known_bad.table import Entry
from harness.known_bad.trials import Trial

PAGE_HEAD = """\
# Known-bad modules

A green catalogue says something only where each scenario is known to catch something. The modules
of `conformance/known_bad/` are our own with one thing wrong each; `nox -s known_bad` runs each of
them until the first scenario that catches it, and fails if one survives. `nox -s known_bad_full`
runs all of them against the whole catalogue, which takes hours.

The other way round, no scenario may be there that nothing needs. For each one
`conformance/known_bad/needed.yaml` names a module that it catches, by what it does and not by a
push without faults, or says why it is kept all the same. A test holds that table to the catalogue,
and `nox -s known_bad_needed` runs every scenario against its module again.

To add a module: a file in that folder with a `build(context)` that puts one wrong thing in the
place of a right one, and an entry in `conformance/known_bad/catches.yaml`. This page is made from
that table by `resync-chaos known-bad --page FILE`. To add a scenario to the catalogue:
`resync-chaos known-bad --needed --record FILE`, which looks for a module that it catches.

| module | what is wrong | caught by |
|---|---|---|
"""


def line(trial: Trial) -> str:
    """Return what became of one module, in a line or two."""
    seconds = f"{trial.seconds:.1f} s"
    if not trial.catches:
        tried = ", ".join(f"{r.name} ({_outcome(trial, r)})" for r in trial.results)
        return f"SURVIVES  {trial.module}: {trial.entry.wrong} ({seconds})\n  tried: {tried}"
    catch = trial.catches[0]
    place = "right place" if trial.points_right else "WRONG PLACE"
    return (
        f"caught    {trial.module}: {trial.entry.wrong} ({seconds})\n"
        f"  by {catch.name}: {catch.verdict}, {place}: {_one_line(catch.sentence)}"
    )


def _outcome(trial: Trial, result: ScenarioResult) -> str:
    disputed = ", and of the good module too" if result.name in trial.disputed else ""
    return f"{result.verdict}{disputed}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def counts(trials: Sequence[Trial]) -> str:
    """Return the closing line."""
    caught = [trial for trial in trials if trial.catches]
    misplaced = [trial.module for trial in caught if not trial.points_right]
    survivors = [trial.module for trial in trials if not trial.catches]
    parts = [f"{len(trials)} modules, {len(caught)} caught, {len(survivors)} survive"]
    if survivors:
        parts[0] += f": {', '.join(survivors)}"
    if misplaced:
        parts.append(f"the diagnosis points elsewhere for {', '.join(misplaced)}")
    return "; ".join(parts)


def needed_by_nobody(trials: Iterable[Trial], scenarios: Iterable[str]) -> list[str]:
    """Return the scenarios that catch no module by what they do."""
    needed = {result.name for trial in trials for result in trial.own_catches}
    return [name for name in scenarios if name not in needed]


def as_json(trials: Sequence[Trial], ran: Sequence[str] | None) -> Json:
    """Return what was found as JSON types.

    Args:
        trials: of the modules.
        ran: the scenarios that every module ran against; ``None`` where it was until a catch.
    """
    return {
        "modules": [
            {
                "module": trial.module,
                "wrong": trial.entry.wrong,
                "seconds": round(trial.seconds, 3),
                "survives": not trial.catches,
                "caught_by": [
                    {
                        "scenario": result.name,
                        "verdict": str(result.verdict),
                        "sentence": result.sentence,
                        "right_place": trial.entry.points_right(result),
                        "seconds": round(result.total_seconds, 3),
                    }
                    for result in trial.catches
                ],
                "passed_by": [r.name for r in trial.results if r not in trial.catches],
            }
            for trial in trials
        ],
        "catches_of": None if ran is None else _catches_of(trials, ran),
        "needed_by_nobody": None if ran is None else needed_by_nobody(trials, ran),
    }


def _catches_of(trials: Iterable[Trial], ran: Iterable[str]) -> dict[str, list[str]]:
    """Return the modules that each scenario catches by what it does."""
    modules: dict[str, list[str]] = {name: [] for name in ran}
    for trial in trials:
        for result in trial.own_catches:
            modules[result.name].append(trial.module)
    return modules


def as_markdown(trials: Sequence[Trial], ran: Sequence[str] | None) -> str:
    """Return what `as_json` returns, as Markdown."""
    rows = [
        "| module | what is wrong | caught by | verdict | right place | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for trial in trials:
        first, more = next(iter(trial.catches), None), len(trial.catches) - 1
        by = "nobody" if first is None else f"`{first.name}`" + (f" and {more} more" * (more > 0))
        verdict = "" if first is None else str(first.verdict)
        place = "yes" if trial.points_right else "no"
        seconds = f"{trial.seconds:.1f}"
        cells = (f"`{trial.module}`", trial.entry.wrong, by, verdict, place, seconds)
        rows.append(f"| {' | '.join(map(_cell, cells))} |")
    text = ["# Known-bad modules", "", counts(trials), "", *rows, ""]
    if ran is not None:
        idle = needed_by_nobody(trials, ran)
        listed = [f"- `{name}`" for name in idle] or ["None."]
        text += [f"## Needed by nobody: {len(idle)} of {len(ran)} scenarios", "", *listed, ""]
    return "\n".join(text)


def write(folder: Path, trials: Sequence[Trial], ran: Sequence[str] | None) -> list[Path]:
    """Write ``matrix.json`` and ``.md``, or ``first_catch`` where there is no matrix.

    Returns:
        Their paths.
    """
    name = "first_catch" if ran is None else "matrix"
    texts = {
        f"{name}.json": json.dumps(as_json(trials, ran), indent=1) + "\n",
        f"{name}.md": as_markdown(trials, ran),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def page(entries: Mapping[str, Entry]) -> str:
    """Return the docs page, from the table alone."""
    return PAGE_HEAD + "".join(f"{row}\n" for row in _page_rows(entries))


def _page_rows(entries: Mapping[str, Entry]) -> Iterator[str]:
    for module, entry in sorted(entries.items()):
        by = ", ".join(f"`{name}`" for name in entry.caught_by)
        yield f"| `{module}` | {_cell(entry.wrong)} | {_cell(by)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
