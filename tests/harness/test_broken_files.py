"""Broken scenario files: each gets its exact message from the command line, and no traceback."""

from __future__ import annotations

import re

import pytest
from broken_files.cases import NAMES
from broken_files.messages import check, golden

MESSAGES = golden()
# file:line:column, where, expected, found, and what to do.
_FORM = re.compile(r"\S+(:\d+:\d+)?: ([^ ]+: )?expected .+, found:? .+\. .+[.?]")


@pytest.mark.parametrize("name", NAMES)
def test_message(name: str) -> None:
    """The file is refused with exit code 2 and exactly the golden lines.

    ``python -m tests.harness.broken_files`` writes them anew.
    """
    code, said = check(name)
    assert code == 2
    assert said.rstrip("\n") == MESSAGES[name].rstrip("\n")


@pytest.mark.parametrize("name", NAMES)
def test_form(name: str) -> None:
    """Every line says where, what was expected, what was found, and what to do."""
    lines = MESSAGES[name].rstrip("\n").splitlines()
    assert lines
    for line in lines:
        assert _FORM.fullmatch(line), line
        assert "Traceback" not in line
        assert line.isprintable()


def test_the_table_is_whole() -> None:
    """Each broken file has its golden lines, and none is left over; there are many."""
    assert list(MESSAGES) == list(NAMES)
    assert len(NAMES) >= 100
