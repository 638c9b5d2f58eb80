"""``report``, ``show`` and ``compare`` on the command line, over folders of runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from sample_results import FAILING, make_result
from sample_runs import EVENTS, lines, write_journal

from harness.cli import main
from harness.contracts import ScenarioResult, Verdict
from harness.reporting.result_file import Details, write_result
from harness.reporting.run_folder import Asked, begin_run, end_run


def make_folder(folder: Path, results: Sequence[ScenarioResult], asked: Sequence[str] = ()) -> Path:
    """Write a run's folder as a run does."""
    folder.mkdir(parents=True)
    names = [*(result.name for result in results), *asked]
    info = begin_run(
        folder, [Asked(name=name, path="a.yaml", proves="It works.") for name in names],
        command=("resync-chaos", "run"), rerun_options=(),
    )  # fmt: skip
    for result in results:
        journal = write_journal(folder / result.name)
        write_result(
            make_result(**(vars(result) | {"journal": journal})), Details(scenario={"seed": 1})
        )
    end_run(folder, info, 1.5)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = make_folder(
        tmp_path / "run", [make_result("session/a"), FAILING], asked=["late/b", "late/c"]
    )
    write_journal(folder / "late/b").write_bytes(lines(EVENTS)[:700])
    return folder


def test_report(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All reports are made again, with what was running and what was not run."""
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out.startswith(f"reports: {run}/report.html")
    found = json.loads((run / "verdicts.json").read_text("ascii"))
    assert [each["name"] for each in found["scenarios"]] == [
        "draft/finish_fails[once]",
        "session/a",
    ]
    assert [each["name"] for each in found["unfinished"]] == ["late/b"]
    assert found["not_run"] == ["late/c"]
    assert found["counts"]["pass"] == 1


def test_report_of_some(run: Path, tmp_path: Path) -> None:
    """One format, one scenario, another folder."""
    into = tmp_path / "else"
    assert main(["report", str(run), "--format", "trace", "-k", "late", "--into", str(into)]) == 0
    assert [path.name for path in into.iterdir()] == ["trace.json"]
    events = json.loads((into / "trace.json").read_text("utf-8"))["traceEvents"]
    names = {each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert names
    assert all(name.startswith("late/b") for name in names)


NO_RUN = (
    "{place}: expected the folder of a run, found {what}. Give what `resync-chaos run` was given "
    "as --out.\n"
)
NO_FOLDER = NO_RUN.format(place="{tmp}/none", what="no such folder")
FORMATS = "html, junit, reproduce, summary, trace, verdicts"
ONE = "expected one scenario of {run} named"
ALL = "session/a, draft/finish_fails[once], late/b"
# fmt: off
MISTAKES = [
    # id           arguments                                message
    ("no-folder",  ["report", "{tmp}/none"],                NO_FOLDER),
    ("no-journal", ["report", "{tmp}"],
     NO_RUN.format(place="{tmp}", what="no run.json and no journal in it")),
    ("format",     ["report", "{run}", "--format", "pdf"],
     f"--format: expected one of {FORMATS}, found pdf.\n"),
    ("no-name",    ["report", "{run}", "-k", "zzz"],
     "-k: expected a scenario of {run} whose name contains 'zzz', found none. "
     "Leave -k away to report all of them.\n"),
    ("show-none",  ["show", "{run}", "zzz"],
     f"{ONE} 'zzz', found 0. Give one of: {ALL}, late/c.\n"),
    ("show-many",  ["show", "{run}", "a"],
     f"{ONE} 'a', found 3. Give one of: {ALL}.\n"),
    ("compare",    ["compare", "{run}", "{tmp}/none"],      NO_FOLDER),
]
# fmt: on


@pytest.mark.parametrize(
    ("arguments", "message"), [c[1:] for c in MISTAKES], ids=[c[0] for c in MISTAKES]
)
def test_mistakes(
    arguments: list[str],
    message: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A mistake is said with what was expected, and ends with 2."""
    empty = tmp_path / "empty"
    empty.mkdir()
    places = {"run": run, "tmp": empty}
    assert main([each.format(**places) for each in arguments]) == 2
    assert capsys.readouterr().err == message.format(**places)


def test_journals_alone(tmp_path: Path) -> None:
    """Of a folder that holds journals and nothing else, what happened is reported."""
    write_journal(tmp_path / "session/a")
    write_journal(tmp_path / "controls-runs/abc")
    assert main(["report", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "verdicts.json").read_text("ascii"))
    assert [(e["name"], e["proves"]) for e in found["unfinished"]] == [
        ("session/a", "It resends once.")
    ]


def test_a_broken_result(run: Path) -> None:
    """A result that cannot be read makes its scenario unfinished, and no other."""
    (run / "session/a/result.json").write_text('{"schema": 1}')
    assert main(["report", str(run)]) == 0
    found = json.loads((run / "verdicts.json").read_text("ascii"))
    why = {each["name"]: each["reason"] for each in found["unfinished"]}
    assert why.keys() == {"session/a", "late/b"}
    assert "its verdict cannot be read" in why["session/a"]


def test_show(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A story names the fault, the answers, the engines and what failed."""
    assert main(["show", str(run), "finish_fails"]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    for part in (
        "fail  draft/finish_fails[once]\n",
        "engine:0           fault: engine.update answers 500\n",
        "push 1, attempt 1, 0.50 s: pause ok, start ok, update 500\n",
        "push 1, attempt 2, 1.20 s: start ok, update ok, finish ok, publish ok, resume ok\n",
        'engine 0: "default", paused, weights push 1\n',
        'served 2 tokens in push 1 as "1" from f1\n',
        "failed  expect.outcome: expected resumed, found raised.\n",
        "waived  invariant.clean_push: expected holds, found found none.\n",
    ):
        assert part in text


def test_show_what_was_running(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a scenario without a verdict, what is known up to the break."""
    assert main(["show", str(run), "late/b"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("unfinished  late/b\n  it was running when the run ended")
    assert "it ends in the middle of a line" in text
    assert "not ended when the journal stops:" in text


def test_compare(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A regression ends with 10, its absence with 0."""
    other = make_folder(tmp_path / "other", [make_result("session/a", verdict=Verdict.HANG)])
    good = make_folder(tmp_path / "good", [make_result("session/a")])
    assert main(["compare", str(good), str(other)]) == 10
    assert capsys.readouterr().out.startswith("worse    session/a: pass -> hang; ")
    assert main(["compare", str(other), str(good)]) == 0
    assert capsys.readouterr().out.endswith("no regressions\n")
