"""What a run leaves behind and what it shows: one file per format.

`REPORTS` are the files that a run writes, and that ``resync-chaos report`` makes again from the
run's folder: its journals, and what ``harness.reporting`` left beside them. ``reports.table`` and
``reports.live`` are the terminal's side. A report reads a finished run and never changes a verdict.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from pathlib import Path

from harness.reporting.run_folder import Run
from reports import html, junit, reproduce, summary, trace, verdicts
from reports.stories import Stories

ReportWriter = Callable[[Run, Stories, Path], Path]

# Name -> writer. Each makes one file in the given directory and returns its path.
REPORTS: dict[str, ReportWriter] = {
    "html": html.write,
    "junit": junit.write,
    "reproduce": reproduce.write,
    "summary": summary.write,
    "trace": trace.write,
    "verdicts": verdicts.write,
}


def write_reports(run: Run, out_dir: Path, formats: Iterable[str] = tuple(REPORTS)) -> list[Path]:
    """Write reports of a run and return their paths; each journal is read once.

    Raises:
        OSError: ``out_dir`` is not writable.
    """
    stories = Stories()
    collecting = gc.isenabled()
    gc.disable()  # nothing here makes cycles, and looking for them takes a tenth of the time
    try:
        return [REPORTS[name](run, stories, out_dir) for name in formats]
    finally:
        if collecting:
            gc.enable()
