"""The tables of incidents name scenarios that exist, and miss no incident and no report."""

from __future__ import annotations

import re
from pathlib import Path

from harness.scenario_file import discover, load_file

ROOT = Path(__file__).parents[1]
SCENARIOS = ROOT / "scenarios"
FILES = {
    str(path.relative_to(SCENARIOS).with_suffix("")): load_file(path).scenarios
    for path in discover([SCENARIOS])
}
PAGE = (ROOT / "docs" / "incidents.md").read_text()
ROW = re.compile(r"^\| (S\d\d) \|[^|]+\|([^|]+)\|[^|]+\|$", re.MULTILINE)
VARIANT = re.compile(r"^\| \[([^\]]+)\]\((https://[^)]+)\) \|[^|]+\|([^|]+)\|$", re.MULTILINE)


def test_incidents() -> None:
    """All 25 are there, and each is told by scenarios in the catalogue, most with a source."""
    rows = ROW.findall(PAGE)
    assert [name for name, _ in rows] == [f"S{number:02}" for number in range(1, 26)]
    for name, cell in rows:
        files = [SCENARIOS / f"{each}.yaml" for each in _quoted(cell)]
        assert files, name
        assert [file for file in files if not file.exists()] == [], name
        assert any("\nsource: http" in file.read_text() for file in files), name


def test_variants() -> None:
    """Each report is there once, with scenarios that exist, or with a reason below the table."""
    rows = VARIANT.findall(PAGE)
    assert len(rows) == 65
    assert len({url for _, url, _ in rows}) == len(rows)
    known = FILES.keys() | {each.name for cells in FILES.values() for each in cells}
    reasons = PAGE.rpartition("|\n")[2]
    for report, _, cell in rows:
        assert set(_quoted(cell)) <= known, report
        assert _quoted(cell) or f"({report})" in reasons, report


def test_every_source_is_in_the_table() -> None:
    """The report that a scenario names as its source names the scenario in turn."""
    told = {
        url: {name.partition("[")[0] for name in _quoted(cell)}
        for _, url, cell in VARIANT.findall(PAGE)
    }
    untold = [
        (name, each.source)
        for name, cells in FILES.items()
        for each in cells[:1]
        if each.source is not None and name not in told.get(each.source, set())
    ]
    assert untold == []


def _quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)
