"""Doubles for trials: results without runs, scenarios without files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.contracts import CheckResult, ScenarioResult, Verdict
from harness.known_bad.table import Entry
from harness.scenario import Scenario
from harness.scenario_file import load_file

TEXT = "proves: It holds.\ntransport: ipc\ntolerates: nothing\nexpect: {outcome: resumed}\n"
GOOD_TARGET = "some.good:build"


def make_entry(*caught_by: str, says: str = "torn") -> Entry:
    """Return the entry of a module that these scenarios are known to catch."""
    return Entry(wrong="one thing", caught_by=list(caught_by), says=says)


def make_result(name: str, verdict: str = "pass", **fields: Any) -> ScenarioResult:
    """Return a result without a journal."""
    given: dict[str, Any] = {
        "path": "somewhere.yaml",
        "proves": "It holds.",
        "sentence": "It holds.",
        "outcomes": ("resumed",),
        "attempts": (1,),
        "engines": (),
        "checks": (),
        "seconds": 0.1,
        "total_seconds": 0.2,
        "journal": Path("nowhere/journal.jsonl"),
    }
    return ScenarioResult(name=name, verdict=Verdict(verdict), **given | fields)


def failed(name: str, detail: str, **fields: Any) -> ScenarioResult:
    """Return a result that fails by one check."""
    check = CheckResult(name="invariant.some", ok=False, detail=detail)
    return make_result(name, "fail", sentence=detail, checks=(check,), **fields)


def make_scenarios(folder: Path, *names: str) -> dict[str, Scenario]:
    """Return scenarios of these names, as they are loaded from files."""
    path = folder / "scenarios" / "each.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(TEXT)
    (scenario,) = load_file(path).scenarios
    return {name: scenario.named(name, path) for name in names}


class Scripted:
    """`RunScenarios` that answers from a script: target -> scenario -> its result.

    Attributes:
        ran: target and scenario of each run, in order.
    """

    def __init__(self, script: Mapping[str, Mapping[str, ScenarioResult]]) -> None:
        self.ran: list[tuple[str, str]] = []
        self._script = script

    async def __call__(
        self, scenarios: Sequence[Scenario], folder: str, *, jobs: int
    ) -> Mapping[str, ScenarioResult]:
        results = {}
        for scenario in scenarios:
            assert scenario.target is not None
            self.ran.append((scenario.target, scenario.name))
            scripted = self._script.get(scenario.target, {})
            results[scenario.name] = scripted.get(scenario.name) or make_result(scenario.name)
        return results
