"""A run's folder: what is written before, during and after, and read back."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from harness.contracts import CheckResult, EngineFinal, ScenarioResult, Verdict
from harness.errors import UsageError
from harness.reporting.result_file import Details, read_result, write_result
from harness.reporting.run_folder import Asked, begin_run, earlier_seconds, end_run, read_run

NAMES = ("session/a", "session/b[x-1]", "c")


def result(folder: Path, name: str, verdict: Verdict = Verdict.PASS) -> ScenarioResult:
    return ScenarioResult(
        name=name,
        path="scenarios/a.yaml",
        proves="It works.",
        verdict=verdict,
        sentence="It \x1b[31m works \udc9b.",
        outcomes=("resumed", "raised"),
        attempts=(1, 2),
        engines=(EngineFinal(index=0, version=None, generation="dead", weights="unknown"),),
        checks=(CheckResult(name="x", ok=False, detail="d", waived="why"),),
        seconds=0.5,
        total_seconds=0.75,
        journal=folder / name / "journal.jsonl",
        evidence={"rank:0": "stack"},
    )


def begin(folder: Path, **fields: Any) -> Any:
    asked = [Asked(name=name, path="a.yaml", proves="It works.") for name in NAMES]
    return begin_run(
        folder, asked, command=("run", "x"), rerun_options=("--target", "a:b"), **fields
    )


def test_a_result_comes_back(tmp_path: Path) -> None:
    """Every field of a result and of its details is read as it was written."""
    wrote = result(tmp_path, "session/a")
    details = Details(scenario={"seed": 1}, control="controls-runs/k", weights={"f": "start"})
    write_result(wrote, details)
    assert read_result(tmp_path / "session/a/result.json") == (wrote, details)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "result": {}}'])
def test_no_result(text: str, tmp_path: Path) -> None:
    """What is no result is refused with what was found."""
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="expected a result of a scenario, found"):
        read_result(path)


def test_a_run(tmp_path: Path) -> None:
    """Finished, running and not begun are told apart, in the order of the selection."""
    info = begin(tmp_path)
    write_result(result(tmp_path, "c"), Details())
    (tmp_path / "session/b[x-1]").mkdir(parents=True)
    (tmp_path / "session/b[x-1]/journal.jsonl").touch()
    run = read_run(tmp_path)
    assert [each.name for each in run.results] == ["c"]
    assert [each.name for each in run.unfinished] == ["session/b[x-1]"]
    assert run.not_run == ("session/a",)
    assert run.info == info
    assert run.info.elapsed_s is None
    assert {"python", "torch", "system"} <= run.info.versions.keys()
    end_run(tmp_path, info, 1.23456)
    assert read_run(tmp_path).info == dataclasses.replace(info, elapsed_s=1.235)


def test_nothing_of_an_earlier_run_is_taken_for_this_one(tmp_path: Path) -> None:
    """A run takes away the results and journals of what it selects, and leaves the others."""
    for name in (*NAMES, "other"):
        write_result(result(tmp_path, name), Details())
        (tmp_path / name / "journal.jsonl").touch()
    begin(tmp_path)
    assert read_run(tmp_path).not_run == NAMES
    assert (tmp_path / "other/result.json").exists()


def test_rounds(tmp_path: Path) -> None:
    """The worst round counts, and its control is that of its own folder."""
    begin(tmp_path, rounds=3)
    for number, verdict in ((1, Verdict.PASS), (2, Verdict.FAIL), (3, Verdict.PASS)):
        folder = tmp_path / f"repeat-{number}" if number > 1 else tmp_path
        write_result(result(folder, "c", verdict), Details(control="controls-runs/k"))
    run = read_run(tmp_path)
    (worst,) = run.results
    assert (worst.verdict, worst.journal) == (Verdict.FAIL, tmp_path / "repeat-2/c/journal.jsonl")
    assert run.details["c"].control == "repeat-2/controls-runs/k"


def test_a_broken_run_file(tmp_path: Path) -> None:
    """Without a run file that can be read, what lies in the folder is taken."""
    (tmp_path / "run.json").write_text('{"command": 3}')
    with pytest.raises(UsageError, match=r"found no run\.json and no journal in it"):
        read_run(tmp_path)
    write_result(result(tmp_path, "session/a"), Details())
    (tmp_path / "session/a/journal.jsonl").write_text('{"proves": "It works."}\n')
    assert [each.name for each in read_run(tmp_path).results] == ["session/a"]


def test_an_earlier_run_tells_how_long_each_took(tmp_path: Path) -> None:
    """Until a run begins, its folder has the times of the one before; what it lacks is left out."""
    write_result(result(tmp_path, NAMES[0]), Details())
    (tmp_path / NAMES[1]).mkdir(parents=True)
    (tmp_path / NAMES[1] / "result.json").write_text("{")
    assert earlier_seconds(tmp_path, NAMES) == {NAMES[0]: 0.75}
    begin(tmp_path)
    assert earlier_seconds(tmp_path, NAMES) == {}
