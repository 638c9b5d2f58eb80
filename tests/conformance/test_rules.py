"""The checks cover what they set out to cover, and say what each needs."""

from __future__ import annotations

import re

import pytest

from conformance.engine import CHECKS
from conformance.engine.contract import EngineMaker
from conformance.engine.pause_machine import CELLS as PAUSE_CELLS
from conformance.engine.rules import Need, named, not_run, proves
from conformance.engine.transitions import CELLS, STATES, TABLE

PROVEN = [source for rule in CHECKS.values() for source in rule.proves]


@pytest.mark.parametrize("vector", range(1, 13))
def test_every_vector(vector: int) -> None:
    """Each of the twelve vectors has its check."""
    assert f"facts 8.2 vector {vector}" in PROVEN


@pytest.mark.parametrize("table", "ABCDEFGH")
def test_every_table(table: str) -> None:
    """Each of the eight stories of shifted replies has its check."""
    assert f"facts 1.3 table {table}" in PROVEN


def test_every_transition() -> None:
    """Each row has a cell for each state; those left out cannot be brought about."""
    assert all(len(row) == 1 + len(STATES) for row in TABLE)
    left_out = {
        (row[0], state)
        for row in TABLE
        for state, cell in zip(STATES, row[1:], strict=True)
        if cell == "-"
    }
    assert left_out == {
        ("start_draft_without", "Od"),  # there is a draft model, or there were no such session
        ("finish_raises", "FF"),  # the fault that led there is used up
        ("completion", "Od"),  # nobody has seen what an engine that speculates does then
    }
    assert len(CELLS) == len(TABLE) * len(STATES) - len(left_out)
    assert len(PAUSE_CELLS) == 66


def test_every_rule_says_where_it_is_from() -> None:
    """A section of the facts and a place in vLLM's source, for each."""
    for rule in CHECKS.values():
        assert any(re.fullmatch(r"facts [\d.]+( \w+ \w+)?", source) for source in rule.proves), rule
        assert any(re.fullmatch(r"vllm/[\w/]+\.py(:\d+(-\d+)?)?", s) for s in rule.proves), rule


async def _check(make: EngineMaker) -> None:
    """Asks for nothing."""


def test_what_is_not_run() -> None:
    """A maker without an offer is spared the rules that need it, and told which and why."""
    rules = {
        "a": named("a", proves("facts 1")(_check)),
    }
    needy = proves("facts 1", needs=[Need.TP2, Need.SERVES])
    rules["b"] = named("b", needy(lambda make: _check(make)))
    assert not_run(rules, set(Need)) == {}
    assert not_run(rules, {Need.TP2}) == {"b": [Need.SERVES]}
    assert not_run(rules, set()) == {"b": [Need.SERVES, Need.TP2]}


def test_a_check_without_a_source_is_no_rule() -> None:
    """Nobody knows what it is evidence for."""
    with pytest.raises(ValueError, match=r"^c: expected a check that says what it proves\."):
        named("c", lambda make: _check(make))
