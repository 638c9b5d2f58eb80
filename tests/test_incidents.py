"""The table of incidents names scenarios that exist, and misses no incident."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| (S\d\d) \|[^|]+\|([^|]+)\|[^|]+\|$", re.MULTILINE)


def test_incidents() -> None:
    """All 25 are there, and each is told by scenarios in the catalogue, most with a source."""
    rows = ROW.findall((ROOT / "docs" / "incidents.md").read_text())
    assert [name for name, _ in rows] == [f"S{number:02}" for number in range(1, 26)]
    for name, cell in rows:
        files = [ROOT / "scenarios" / f"{each}.yaml" for each in re.findall(r"`([^`]+)`", cell)]
        assert files, name
        assert [file for file in files if not file.exists()] == [], name
        assert any("\nsource: http" in file.read_text() for file in files), name
