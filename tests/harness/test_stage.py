"""Processes that do not come up: the scenario is invalid, and nothing of it is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_runs import RealRuns, make_scenario

import harness.stage
from harness.contracts import Verdict

pytestmark = pytest.mark.processes


def test_build_raises_on_one_rank(real_runs: RealRuns, tmp_path: Path) -> None:
    """The rank is named with its status and the end of its log; the others are cleaned up."""
    result = real_runs.run_one(make_scenario(target="raises"), tmp_path)
    log = tmp_path / "tests/one/rank-1.log"
    assert result.verdict == Verdict.INVALID
    assert result.sentence.startswith(
        "rank:1: expected it to come up, found it ended with status 1. "
        f"The end of {log}:\nTraceback (most recent call last):\n"
    )
    assert result.sentence.endswith("\nValueError: no weights on this rank")
    assert (result.outcomes, result.engines) == ((), ())


def test_build_never_comes_back(
    real_runs: RealRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that never comes up is given up, without giving up the run."""
    monkeypatch.setattr(harness.stage, "READY_LIMIT_S", 2.0)
    scenarios = [make_scenario("tests/bad", target="never_comes"), make_scenario("tests/good")]
    results = real_runs.run(scenarios, tmp_path, jobs=1)
    assert results["tests/bad"].verdict == Verdict.INVALID
    assert results["tests/bad"].sentence.startswith(
        "rank:1: expected it to come up, found it silent after 2 s. The end of "
    )
    assert results["tests/good"].verdict == Verdict.PASS


@pytest.mark.parametrize(
    ("target", "last_line"),
    [
        (
            "no_such_module:build",
            "harness.errors.UsageError: target no_such_module:build: expected a module that can be "
            "imported, found ModuleNotFoundError: No module named 'no_such_module'. Put its folder "
            "on PYTHONPATH, or fix the import.",
        ),
        (
            "not_callable",
            "harness.errors.UsageError: target tests.harness.bad_targets:not_callable: expected a "
            "callable 'not_callable' in tests.harness.bad_targets, found str. Write package.module:"
            "factory.",
        ),
    ],
    ids=["missing", "no-callable"],
)
def test_target_that_is_none(
    real_runs: RealRuns, tmp_path: Path, target: str, last_line: str
) -> None:
    """Where a target slipped past the check before the run, its ranks say what is wrong."""
    result = real_runs.run_one(make_scenario(target=target), tmp_path)
    assert result.verdict == Verdict.INVALID
    assert result.sentence.splitlines()[-1] == last_line


def test_a_second_run_starts_its_journal_anew(real_runs: RealRuns, tmp_path: Path) -> None:
    """Running into the same folder again leaves one run's events, not two."""
    for _ in range(2):
        result = real_runs.run_one(make_scenario(), tmp_path)
        assert result.verdict == Verdict.PASS
    assert result.journal.read_text().count('"event":"scenario"') == 1
