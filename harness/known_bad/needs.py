"""Which known-bad module each scenario catches: none may be there that nothing needs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Protocol

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.contracts import ScenarioResult, Verdict
from harness.errors import UsageError
from harness.known_bad.table import FOLDER, Entry
from harness.known_bad.trials import Setup, Trial
from harness.scenario import Scenario

TABLE = FOLDER / "needed.yaml"
HEAD = """\
# What each scenario of the catalogue is needed for.
#
# catches: scenario -> a module of this folder that it tells from the good one by what it does. Made
#   by `resync-chaos known-bad --needed --record`, and tried again by `nox -s known_bad_needed`.
# kept: pattern of scenarios that catch none -> why they are there all the same; written by hand.

"""


class Needs(BaseModel):
    """The table of needs.

    Attributes:
        catches: scenario -> a module that it catches.
        kept: pattern of names of scenarios that catch none -> why they are there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    catches: dict[str, str] = {}
    kept: dict[str, Annotated[str, Field(min_length=20)]] = {}

    def why_kept(self, scenario: str) -> str | None:
        """Return why a scenario is there though it catches nothing; ``None`` where nobody says."""
        # Names hold brackets, which a pattern would take for a set of characters.
        return next(
            (
                why
                for pattern, why in self.kept.items()
                if fnmatchcase(scenario, pattern.replace("[", "[[]"))
            ),
            None,
        )


def load(path: Path = TABLE) -> Needs:
    """Return the table of needs.

    Raises:
        UsageError: the file cannot be read, or is no such table; it names every mistake.
    """
    try:
        return Needs.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: expected a table of needs, found {error}.") from None
    except ValidationError as error:
        lines = [
            f"{path}: {'.'.join(map(str, each['loc']))}: {each['msg']}, found {each['input']!r}."
            for each in error.errors()
        ]
        raise UsageError("\n".join(lines)) from None


def record(needs: Needs, path: Path = TABLE) -> None:
    """Write a table of needs."""
    tables = {"catches": dict(sorted(needs.catches.items())), "kept": needs.kept}
    path.write_text(HEAD + yaml.safe_dump(tables, sort_keys=False, width=100), encoding="utf-8")


@dataclass(frozen=True)
class Need:
    """What was found of one scenario.

    Attributes:
        good: verdict of the good module's run.
        tried: modules that ran, the one that was caught last; none where the good one does not
            pass, since such a scenario tells nobody apart.
        catch: the result of the run that caught a module; ``None`` where none was.
    """

    scenario: str
    good: Verdict
    tried: tuple[str, ...] = ()
    catch: ScenarioResult | None = None

    @property
    def module(self) -> str | None:
        """The module that it catches."""
        return self.tried[-1] if self.catch is not None else None


class Watcher(Protocol):
    """Is told of each scenario that was tried."""

    def __call__(self, need: Need) -> None: ...


@dataclass
class Order:
    """In which order modules are tried against a scenario: the likeliest to be caught first.

    That is the module that it is known to catch, then those that its file, its folder and the
    catalogue catch, the more scenarios they were caught by the earlier.

    Attributes:
        caught: pairs of a scenario and a module that it catches; grows as more are found.
    """

    entries: Mapping[str, Entry]
    known: Mapping[str, str]
    caught: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with what the tables say."""
        self.caught += [(n, module) for module, e in self.entries.items() for n in e.caught_by]
        self.caught += self.known.items()

    def of(self, scenario: str) -> list[str]:
        """Return the modules for a scenario, in order."""
        votes: Counter[str] = Counter(dict.fromkeys(self.entries, 0))
        for other, module in self.caught:
            votes[module] += (
                1
                + 1_000 * (_folder(other) == _folder(scenario))
                + 1_000_000 * (_file(other) == _file(scenario))
            )
        order = [module for module, _ in votes.most_common() if self._is_one(module)]
        first = self.known.get(scenario)
        return sorted(order, key=lambda module: module != first)

    def _is_one(self, module: str) -> bool:
        # What is caught everywhere says of no scenario that it is needed.
        return module in self.entries and not self.entries[module].everywhere


async def find_needs(setup: Setup, known: Mapping[str, str], tell: Watcher) -> list[Need]:
    """Run the good module, and then for each scenario modules until it catches one.

    Args:
        known: scenario -> a module that it is known to catch, which is tried first.
        tell: called as each scenario ends.
    """
    good = await setup.of_good(setup.scenarios)
    order = Order(setup.entries, known)
    slots = asyncio.Semaphore(setup.jobs)

    async def find(name: str) -> Need:
        async with slots:
            need = await first_catch(name, good[name].verdict)
            tell(need)
            return need

    async def first_catch(name: str, of_good: Verdict) -> Need:
        tried: list[str] = []
        for module in order.of(name) if of_good is Verdict.PASS else ():
            result = await setup.one(module, name)
            tried.append(module)
            if Trial(module, setup.entries[module], [result]).own_catches:
                order.caught.append((name, module))
                return Need(name, of_good, tuple(tried), result)
        return Need(name, of_good, tuple(tried))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(find(name)) for name in setup.scenarios if name in good]
    return [task.result() for task in tasks]


def merge(needs: Needs, found: Iterable[Need], scenarios: Iterable[str]) -> Needs:
    """Return a table with what was found, of the scenarios that there are."""
    names = set(scenarios)
    caught = {name: module for name, module in needs.catches.items() if name in names}
    for need in found:
        if need.module is not None:
            caught[need.scenario] = need.module
        elif need.good is Verdict.PASS:
            caught.pop(need.scenario, None)
    return needs.model_copy(update={"catches": caught})


def unneeded(needs: Needs, found: Iterable[Need]) -> Iterator[Need]:
    """Yield the scenarios that catch no module, and of which nobody says why they are there."""
    for need in found:
        if need.catch is None and needs.why_kept(need.scenario) is None:
            yield need


def mistakes(
    needs: Needs, entries: Mapping[str, Entry], scenarios: Mapping[str, Scenario]
) -> list[str]:
    """Return what does not hold of a table of needs: it must fit the catalogue and the modules."""
    again = "Run `resync-chaos known-bad --needed --record`"
    lines = [
        f"{name}: expected a module that it catches, or why it is kept, found neither. {again} "
        "with its file."
        for name in scenarios
        if name not in needs.catches and needs.why_kept(name) is None
    ]
    lines += [
        f"{name}: expected a scenario of the catalogue, found none of that name. {again}."
        for name in needs.catches
        if name not in scenarios
    ]
    lines += [
        f"{name}: expected a module of catches.yaml that is not caught everywhere, found {module}. "
        f"{again}."
        for name, module in needs.catches.items()
        if module not in entries or entries[module].everywhere
    ]
    lines += [
        f"kept.{pattern}: expected a pattern of scenarios that catch none, found one for "
        f"{', '.join(fits) or 'no scenario'}. Take it out."
        for pattern, fits in _kept_for_nothing(needs, scenarios)
    ]
    return lines


def _kept_for_nothing(needs: Needs, scenarios: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the patterns that keep nothing, each with the scenarios that it fits all the same."""
    names = list(scenarios)
    for pattern in needs.kept:
        fits = [name for name in names if Needs(kept={pattern: "-" * 20}).why_kept(name)]
        if all(name in needs.catches for name in fits):
            yield pattern, fits


def _file(name: str) -> str:
    return name.partition("[")[0]


def _folder(name: str) -> str:
    return _file(name).rpartition("/")[0]
