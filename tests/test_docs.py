"""The page on vLLM's rules says what the checks say: every name, number and cell in it is real."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from conformance.engine import CHECKS
from conformance.engine.transitions import STATES, TABLE

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "vllm-0.32.md"
CITED_IN = ("conformance", "fakes", "harness", "resync", "vllm_engine", "tests")
NAME = re.compile(r"`([a-z_]+(?:\.[a-z_*]+|\[[^\]`]+\]))`")
CITATION = re.compile(r"\bfacts (\d+(?:\.\d+)?)(?: (?:table ([A-H])|vector (\d+)))?")


def _text() -> str:
    return PAGE.read_text(encoding="utf-8")


def _rows(first: str) -> list[list[str]]:
    """Return the cells of the table whose first column is headed ``first``."""
    lines = iter(_text().splitlines())
    for line in lines:
        if line.startswith(f"| {first} |"):
            next(lines)  # the rule below the head
            break
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_every_named_check_exists() -> None:
    """A renamed check must not leave a fact without its proof."""
    modules = {name.partition(".")[0] for name in CHECKS if "[" not in name}
    families = {name.partition("[")[0] for name in CHECKS if "[" in name}
    named = [
        name
        for name in NAME.findall(_text())
        if name.partition(".")[0] in modules or name.partition("[")[0] in families
    ]
    assert len(named) > 40
    missing = [
        name
        for name in named
        if not any(fnmatchcase(check, name.replace("[", "[[]")) for check in CHECKS)
    ]
    assert missing == []


def test_every_citation_has_its_section() -> None:
    """``facts 1.3 table A`` anywhere in the code leads to that row of the page."""
    sections = set(re.findall(r"^##+ (\d+(?:\.\d+)?)\.? ", _text(), re.MULTILINE))
    sections |= set(re.findall(r"^\* \*\*(\d+\.\d+) ", _text(), re.MULTILINE))
    tables = {row[0] for row in _rows("table")}
    vectors = {row[0] for row in _rows("vector")}
    missing = set()
    cited = 0
    for folder in CITED_IN:
        for path in (ROOT / folder).rglob("*.py"):
            for section, table, vector in CITATION.findall(path.read_text(encoding="utf-8")):
                cited += 1
                found = (
                    section in sections
                    and (not table or table in tables)
                    and (not vector or vector in vectors)
                )
                if not found:
                    missing.add(f"{path.relative_to(ROOT)}: facts {section} {table}{vector}")
    assert cited > 40
    assert missing == set()


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_transitions(row: tuple[str, ...]) -> None:
    """The table of the page is the one that is checked, cell by cell."""
    request, *cells = row
    written = {first: rest for first, *rest in _rows("request")}
    assert written[request] == cells
    assert len(cells) == len(STATES)
