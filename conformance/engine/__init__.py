"""What an inference engine must do, whoever made it: one module of checks per contract.

A check is ``async def check(make: EngineMaker) -> None``; it makes fresh engines and raises
``AssertionError`` with what was sent, expected and found. `CHECKS` lists them all as rules, by
name; a rule says what it proves, and what it needs of a maker (`rules.not_run` says which rules a
maker cannot run).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from conformance.engine import (
    death,
    failures,
    layers,
    pause_machine,
    pausing,
    replies,
    serving,
    sessions,
    transitions,
    validation,
    versions,
)
from conformance.engine.rules import Rule, named

STORIES = (sessions, replies, layers, versions, validation, pausing, serving, failures, death)
TABLES = (transitions, pause_machine, failures, validation, death)


def _rules() -> Iterator[Rule]:
    for module in STORIES:
        for check in module.CHECKS:
            yield named(f"{module.__name__.rpartition('.')[2]}.{check.__name__}", check)
    for table in TABLES:
        for name, check in table.CELLS.items():
            yield named(name, check)


CHECKS: Mapping[str, Rule] = {rule.name: rule for rule in _rules()}
