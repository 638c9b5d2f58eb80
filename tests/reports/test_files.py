"""``junit.xml`` and ``verdicts.json``, against golden files and their own readers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from sample_results import FAILING, GOLDEN, RESULTS, make_result

from harness.contracts import ScenarioResult
from reports import REPORTS

FILES = {"junit": "junit.xml", "verdicts": "verdicts.json"}


@pytest.mark.parametrize("report", REPORTS)
def test_golden(report: str, tmp_path: Path) -> None:
    """Each report writes its golden file, in a directory that did not exist."""
    path = REPORTS[report](RESULTS, tmp_path / "new" / "out")
    assert path == tmp_path / "new" / "out" / FILES[report]
    assert path.read_text(encoding="utf-8") == (GOLDEN / FILES[report]).read_text(encoding="utf-8")


@pytest.mark.parametrize("report", REPORTS)
def test_order_does_not_matter(report: str, tmp_path: Path) -> None:
    """Scenarios that finish in another order, as with several jobs, give the same file."""
    first = REPORTS[report](RESULTS, tmp_path / "first").read_bytes()
    assert REPORTS[report](RESULTS[::-1], tmp_path / "second").read_bytes() == first


@pytest.mark.parametrize("report", REPORTS)
def test_nothing_ran(report: str, tmp_path: Path) -> None:
    """An interrupted run that finished nothing still leaves a file that parses."""
    text = REPORTS[report]([], tmp_path).read_text(encoding="utf-8")
    if report == "junit":
        assert ElementTree.fromstring(text).get("tests") == "0"
    else:
        assert json.loads(text)["scenarios"] == []


def test_junit_takes_every_character(tmp_path: Path) -> None:
    """Any character in any text of a result leaves XML that parses, and is seen in it."""
    every = "".join(map(chr, range(0x300))) + "\ud800\udfff\ufffe\uffff]]>&\U0010ffff"
    check = dataclasses.replace(FAILING.checks[0], name=every, detail=every, waived=None)
    result = dataclasses.replace(
        FAILING,
        name=f"session/{every}",
        path=every,
        proves=every,
        sentence=every,
        outcomes=(every,),
        engines=(dataclasses.replace(FAILING.engines[0], version=every, weights=every),),
        checks=(check,),
        evidence={every: every},
    )
    root = ElementTree.parse(REPORTS["junit"]([result], tmp_path)).getroot()
    (failure,) = root.iter("failure")
    (seen,) = root.iter("system-out")
    for text in (failure.get("message"), failure.text, seen.text):
        assert text is not None
        assert "\\x00\\x01" in text
        assert "\\ud800\\udfff\\ufffe\\uffff]]>&\U0010ffff" in text


def test_junit_names_are_stable(tmp_path: Path) -> None:
    """Where the checkout lies does not change a test's name, only its file."""
    here = make_result("session/draft/fails[a-b]")
    there = dataclasses.replace(here, path="/elsewhere/scenarios/session/draft/fails.yaml")
    for number, result in enumerate((here, there)):
        root = ElementTree.parse(REPORTS["junit"]([result], tmp_path / str(number))).getroot()
        (case,) = root.iter("testcase")
        assert case.get("classname") == "scenarios.session.draft"
        assert case.get("name") == "fails[a-b]"


def test_verdicts_lose_nothing(tmp_path: Path) -> None:
    """Every field of a result comes back from the file, control characters too."""
    path = REPORTS["verdicts"]([FAILING], tmp_path)
    (found,) = json.loads(path.read_text(encoding="ascii"))["scenarios"]
    assert set(found) == {field.name for field in dataclasses.fields(ScenarioResult)}
    assert found["engines"] == [dataclasses.asdict(engine) for engine in FAILING.engines]
    assert found["checks"] == [dataclasses.asdict(check) for check in FAILING.checks]
    assert found["journal"] == str(FAILING.journal)
