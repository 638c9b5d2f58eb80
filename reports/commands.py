"""``report``, ``show`` and ``compare``: the commands that read a run's folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

from harness.errors import UsageError
from harness.reporting.run_folder import Run, read_run
from reports import REPORTS, write_reports
from reports.comparison import compare_runs
from reports.phrases import visible
from reports.stories import Stories
from reports.told import tell_scenario

EXIT_REGRESSED = 10
MAX_NAMED = 20


def report(options: argparse.Namespace) -> int:
    """Write reports of a run again; returns 0, whatever the verdicts are.

    Raises:
        UsageError: there is no run in the folder, no such report, or no such scenario.
    """
    unknown = [name for name in options.formats or () if name not in REPORTS]
    if unknown:
        raise UsageError(
            f"--format: expected one of {', '.join(REPORTS)}, found {', '.join(unknown)}."
        )
    run = read_run(options.folder)
    if options.pattern is not None:
        run = _only(run, lambda name: options.pattern in name)
        if not run.results and not run.unfinished:
            raise UsageError(
                f"-k: expected a scenario of {options.folder} whose name contains "
                f"{options.pattern!r}, found none. Leave -k away to report all of them."
            )
    into = options.into or options.folder
    try:
        written = write_reports(run, into, options.formats or REPORTS)
    except OSError as error:
        raise UsageError(
            f"{into}: expected a folder that can be written to, found {error.strerror}. "
            "Choose another with --into."
        ) from error
    print(f"reports: {', '.join(str(path) for path in written)}")
    return 0


def show(options: argparse.Namespace) -> int:
    """Print one scenario's story; returns 0, whatever its verdict is.

    Raises:
        UsageError: the run has no such scenario, or several.
    """
    run = read_run(options.folder)
    names = [*(r.name for r in run.results), *(each.name for each in run.unfinished)]
    found = [name for name in names if name == options.name] or [
        name for name in names if options.name in name
    ]
    if len(found) != 1:
        known = found or [*names, *run.not_run]
        more = f" and {len(known) - MAX_NAMED} more" if len(known) > MAX_NAMED else ""
        raise UsageError(
            f"expected one scenario of {options.folder} named {options.name!r}, found "
            f"{len(found)}. Give one of: {', '.join(map(visible, known[:MAX_NAMED]))}{more}."
        )
    _print(tell_scenario(_only(run, lambda name: name == found[0]), Stories()))
    return 0


def compare(options: argparse.Namespace) -> int:
    """Print how one run differs from an older one; returns 10 if anything got worse.

    Raises:
        UsageError: one of the folders holds no run.
    """
    comparison = compare_runs(
        read_run(options.old),
        read_run(options.new),
        slower_ratio=options.slower_ratio,
        slower_s=options.slower_s,
    )
    _print(comparison.lines)
    return EXIT_REGRESSED if comparison.num_regressions else 0


def _only(run: Run, wanted: Callable[[str], bool]) -> Run:
    return replace(
        run,
        results=tuple(r for r in run.results if wanted(r.name)),
        details={name: each for name, each in run.details.items() if wanted(name)},
        unfinished=tuple(each for each in run.unfinished if wanted(each.name)),
        not_run=tuple(name for name in run.not_run if wanted(name)),
    )


def _print(lines: Iterator[str] | tuple[str, ...]) -> None:
    """Print lines on any terminal: a character that it does not know is spelled out."""
    encoding = sys.stdout.encoding or "ascii"
    for line in lines:
        print(line.encode(encoding, "backslashreplace").decode(encoding))
