"""The table of known-bad modules: what is wrong with each, and which scenarios catch it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from harness.contracts import ScenarioResult
from harness.errors import UsageError
from harness.reporting.result_file import RESULT, read_result
from harness.scenario import Scenario

FOLDER = Path(__file__).parents[2] / "conformance" / "known_bad"
TABLE = FOLDER / "catches.yaml"
PACKAGE = "conformance.known_bad"
HELPERS = frozenset({"__init__", "parts", "patching"})  # files of the folder that are no module


class Entry(BaseModel):
    """One known-bad module.

    Attributes:
        wrong: what is wrong with it, in a few words.
        caught_by: names of the scenarios that are known to catch it, the fastest first.
        says: regular expression that finds the right place in what a catch says.
        everywhere: nearly every scenario catches it, so that none is needed for it alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    wrong: Annotated[str, Field(min_length=1, max_length=120)]
    caught_by: Annotated[list[str], Field(min_length=1)]
    says: Annotated[str, Field(min_length=1)]
    everywhere: bool = False

    @field_validator("says")
    @classmethod
    def _is_an_expression(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"expected a regular expression, found one with {error}") from error
        return value

    def points_right(self, result: ScenarioResult) -> bool:
        """Return whether a scenario's diagnosis names what is wrong."""
        return re.search(self.says, diagnosis(result)) is not None


_ENTRIES = TypeAdapter(dict[str, Entry])


def load(path: Path = TABLE) -> dict[str, Entry]:
    """Return the table: name of a module -> its entry, in the order of the file.

    Raises:
        UsageError: the file cannot be read, or is no such table; it names every mistake.
    """
    try:
        return _ENTRIES.validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: expected a table of known-bad modules, found {error}.") from None
    except ValidationError as error:
        lines = [
            f"{path}: {'.'.join(map(str, each['loc'])) or 'the table'}: {each['msg']}, found "
            f"{each['input']!r}."
            for each in error.errors()
        ]
        raise UsageError("\n".join(lines)) from None


def choose(entries: Mapping[str, Entry], pattern: str | None) -> dict[str, Entry]:
    """Return the modules whose name contains the pattern, or matches it as a glob.

    Raises:
        UsageError: there is none.
    """
    chosen = {
        name: entry
        for name, entry in entries.items()
        if pattern is None or pattern in name or fnmatchcase(name, pattern)
    }
    if not chosen:
        raise UsageError(
            f"expected known-bad modules matching {pattern}, found none of {len(entries)}: "
            f"{', '.join(entries)}."
        )
    return chosen


def target_of(module: str) -> str:
    """Return a module's ``package.module:factory``."""
    return f"{PACKAGE}.{module}:build"


def against(scenario: Scenario, target: str) -> Scenario:
    """Return a scenario that runs a target."""
    return scenario.model_copy(update={"target": target})


def usable(scenarios: Iterable[Scenario]) -> dict[str, Scenario]:
    """Return the scenarios that a known-bad module may run, by name.

    Those with a target of their own are negative controls, and say what that one does wrong.
    """
    return {scenario.name: scenario for scenario in scenarios if scenario.target is None}


def require_known(entries: Mapping[str, Entry], scenarios: Mapping[str, Scenario]) -> None:
    """Check that every scenario that the table names is there.

    Raises:
        UsageError: one is not, or is a negative control.
    """
    missing = [
        f"{module}: caught_by: expected names of scenarios without a target of their own, found "
        f"{name}. `resync-chaos list scenarios` shows their names."
        for module, entry in entries.items()
        for name in entry.caught_by
        if name not in scenarios
    ]
    if missing:
        raise UsageError("\n".join(missing))


def diagnosis(result: ScenarioResult) -> str:
    """Return all that is said of what is wrong: the verdict's sentence, each check that does not
    hold, and what the ranks raised in the pushes."""
    failed = [
        f"{check.name}: {check.detail}"
        for check in result.checks
        if not check.ok and check.waived is None
    ]
    return "\n".join([result.sentence, *failed, *dict.fromkeys(_raised(result))])


def _raised(result: ScenarioResult) -> Iterator[str]:
    path = result.journal.with_name(RESULT)
    if not path.exists():
        return
    for push in read_result(path)[1].pushes:
        yield from (rank["error"] for rank in push["ranks"].values() if rank["error"])
