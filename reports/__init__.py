"""What a run leaves behind and what it shows: one file per format.

`REPORTS` are the files that a run writes. ``reports.table`` and ``reports.live`` are the terminal's
side. A report reads finished results and never changes a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from harness.contracts import ScenarioResult
from reports import junit, verdicts

ReportWriter = Callable[[Sequence[ScenarioResult], Path], Path]

# Name -> writer. Each makes one file in the run's directory and returns its path.
REPORTS: dict[str, ReportWriter] = {
    "junit": junit.write,
    "verdicts": verdicts.write,
}
