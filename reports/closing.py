"""What a run prints when it is over, and the reports that it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from harness.contracts import ScenarioResult
from harness.reporting.run_folder import RunInfo, end_run, read_run
from reports import write_reports
from reports.table import render, summary


def close_run(
    results: Sequence[ScenarioResult],
    console: Console,
    folder: Path,
    info: RunInfo,
    *,
    ended: bool,
    elapsed_s: float,
    num_not_run: int,
    quiet: bool,
) -> list[Path]:
    """Print the table, or with ``quiet`` its last line alone; return the reports' paths.

    Args:
        results: the scenarios that finished.
        folder: of the run; the reports go there.
        info: what `harness.reporting.run_folder.begin_run` returned.
        ended: whether the run ended by itself.
    """
    if ended:
        end_run(folder, info, elapsed_s)
    if quiet:
        console.print(summary(results, elapsed_s=elapsed_s, num_not_run=num_not_run))
    else:
        render(
            results,
            console,
            elapsed_s=elapsed_s,
            num_not_run=num_not_run,
            rerun_options=info.rerun_options,
        )
    return write_reports(read_run(folder), folder)
