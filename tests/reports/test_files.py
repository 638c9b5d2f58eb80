"""Every report: its golden file where it has one, and what all of them must stand."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from xml.etree import ElementTree

import pytest
from sample_results import GOLDEN, RESULTS, make_result
from sample_runs import HOSTILE, event, make_run, span, unfinished, write_journal

from harness.contracts import CheckResult, EngineFinal, Verdict
from harness.reporting.result_file import Details
from harness.reporting.run_folder import Run, RunInfo
from reports import REPORTS, write_reports
from reports.stories import Stories

FILES = {
    "html": "report.html",
    "junit": "junit.xml",
    "reproduce": "reproduce.sh",
    "summary": "summary.md",
    "trace": "trace.json",
    "verdicts": "verdicts.json",
}


def text_of(report: str, run: Run, out_dir: Path) -> str:
    return REPORTS[report](run, Stories(), out_dir).read_text(encoding="utf-8")


@pytest.mark.parametrize("report", ["junit", "reproduce", "summary", "verdicts"])
def test_golden(report: str, tmp_path: Path) -> None:
    """Each report writes its golden file, in a directory that did not exist."""
    path = REPORTS[report](make_run(), Stories(), tmp_path / "new" / "out")
    assert path == tmp_path / "new" / "out" / FILES[report]
    assert path.read_text(encoding="utf-8") == (GOLDEN / FILES[report]).read_text(encoding="utf-8")


@pytest.mark.parametrize("report", REPORTS)
def test_order_does_not_matter(report: str, tmp_path: Path) -> None:
    """Scenarios that finish in another order, as with several jobs, give the same file."""
    first = text_of(report, make_run(), tmp_path / "first")
    assert text_of(report, make_run(RESULTS[::-1]), tmp_path / "second") == first


@pytest.mark.parametrize("report", REPORTS)
def test_nothing_ran(report: str, tmp_path: Path) -> None:
    """An interrupted run that finished nothing still leaves a file that parses."""
    text = text_of(report, Run(folder=tmp_path), tmp_path)
    if report == "junit":
        assert ElementTree.fromstring(text).get("tests") == "0"
    elif FILES[report].endswith(".json"):
        assert json.loads(text)
    else:
        assert text


def hostile_run(folder: Path) -> Run:
    """Return a run in which every text that a stranger can choose bites."""
    journal = write_journal(
        folder / "hostile",
        [
            event(1.0, "harness", "scenario", name=HOSTILE, proves=HOSTILE),
            event(1.0, HOSTILE, "fault", at=HOSTILE, label=HOSTILE, where={"worker": HOSTILE}),
            *span(1.1, None, f"rank:{HOSTILE}", "gather", tensor=HOSTILE),
            *span(1.1, 1.2, "rank:0", "step", name="request", action=HOSTILE, engine=HOSTILE),
            event(1.2, "engine:0", "version", version=HOSTILE),
            event(1.3, "engine:0", "token", version=HOSTILE, fingerprint=HOSTILE),
            event(1.4, "harness", "diagnosis", kind=HOSTILE, sentence=HOSTILE),
            event(1.5, "harness", "halt", kind="deadlock", sentence=HOSTILE,
                  table=[{"who": HOSTILE, "at": HOSTILE, "waits_for": f"rank 0 {HOSTILE}"}]),
            event(1.6, "engine:0", HOSTILE, more=HOSTILE),
        ],
    )  # fmt: skip
    result = make_result(
        f"session/{HOSTILE}",
        path=HOSTILE,
        proves=HOSTILE,
        sentence=HOSTILE,
        verdict=Verdict.HANG,
        outcomes=(HOSTILE,),
        engines=(EngineFinal(index=0, version=HOSTILE, generation="running", weights=HOSTILE),),
        checks=(CheckResult(name=HOSTILE, ok=False, detail=HOSTILE),),
        evidence={HOSTILE: HOSTILE, "rank:0": "B" * 1_000_000},
        journal=journal,
    )
    details = Details(
        scenario={"transport": HOSTILE, "faults": [{"kind": HOSTILE, "at": HOSTILE}]},
        control=None,
        pushes=({"number": 1, "outcome": HOSTILE, "version": HOSTILE,
                 "ranks": {"0": {"ending": HOSTILE, "error": HOSTILE, "error_type": HOSTILE}}},),
        weights={HOSTILE: HOSTILE},
    )  # fmt: skip
    info = RunInfo(command=("run", HOSTILE), versions={HOSTILE: HOSTILE}, rerun_options=(HOSTILE,))
    return Run(
        folder=folder, info=info, results=(result,), details={result.name: details},
        unfinished=(unfinished(journal, HOSTILE),), not_run=(HOSTILE,),
    )  # fmt: skip


@pytest.mark.parametrize("report", REPORTS)
def test_hostile_texts(report: str, tmp_path: Path) -> None:
    """Whatever an engine says is text: no control character, no element of its own, no break."""
    text = text_of(report, hostile_run(tmp_path), tmp_path / "out")
    assert not {character for character in text if ord(character) < 32} - {"\n", "\t"}
    assert "\x1b" not in text
    if report == "junit":
        assert ElementTree.fromstring(text).get("failures") == "1"
    elif FILES[report].endswith(".json"):
        json.loads(text)
    elif report == "html":
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "{{ 7" in text
    elif report == "summary":
        outside = [part for index, part in enumerate(text.split("\n````\n")) if index % 2 == 0]
        assert not any(
            "<img" in part or "**bold**" in part or "[link](" in part for part in outside
        )


def test_all_at_once(tmp_path: Path) -> None:
    """A run writes every file of the table, and those that were asked for alone."""
    written = write_reports(make_run(), tmp_path / "all")
    assert sorted(path.name for path in written) == sorted(FILES.values())
    (only,) = write_reports(make_run(), tmp_path / "one", ["junit"])
    assert [path.name for path in (tmp_path / "one").iterdir()] == [only.name]


def test_reproduce_can_be_run(tmp_path: Path) -> None:
    """The script is executable by its owner, and by everybody who may read it."""
    path = REPORTS["reproduce"](make_run(), Stories(), tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
