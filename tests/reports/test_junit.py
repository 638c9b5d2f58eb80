"""``junit.xml``: valid by the schemas, complete when the run died, stable in its names.

``junit-10.xsd`` is the schema that Jenkins' xUnit plugin publishes and pytest tests its own files
against, unchanged, under its own licence. It is older than the properties of a test case, which
pytest's ``record_property`` writes and Buildkite reads; ``junit.xsd``, ours, has them, and is
stricter in the rest.
"""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from xml.etree import ElementTree

import pytest
import xmlschema
from sample_results import FAILING, make_result
from sample_runs import make_run, span, unfinished, write_journal

from harness.reporting.run_folder import Run
from reports import junit
from reports.stories import Stories

OURS, JENKINS = (
    xmlschema.XMLSchema(Path(__file__).with_name(name)) for name in ("junit.xsd", "junit-10.xsd")
)


def parsed(run: Run, out_dir: Path) -> ElementTree.Element:
    path = junit.write(run, Stories(), out_dir)
    OURS.validate(str(path))
    root = ElementTree.parse(path).getroot()
    JENKINS.validate(_without_properties(root))
    return root


def _without_properties(root: ElementTree.Element) -> ElementTree.Element:
    """Return a copy without the properties of test cases."""
    copied = copy.deepcopy(root)
    for case in copied.iter("testcase"):
        for properties in case.findall("properties"):
            case.remove(properties)
    return copied


def test_takes_every_character(tmp_path: Path) -> None:
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
    root = parsed(make_run([result]), tmp_path)
    (failure,) = root.iter("failure")
    (seen,) = root.iter("system-out")
    for text in (failure.get("message"), failure.text, seen.text):
        assert text is not None
        assert "\\x00\\x01" in text
        assert "\\ud800\\udfff\\ufffe\\uffff]]>&\U0010ffff" in text


def test_names_are_stable(tmp_path: Path) -> None:
    """Where the checkout lies does not change a test's name."""
    here = make_result("session/draft/fails[a-b]")
    there = dataclasses.replace(here, path="/elsewhere/scenarios/session/draft/fails.yaml")
    for number, result in enumerate((here, there)):
        (case,) = parsed(make_run([result]), tmp_path / str(number)).iter("testcase")
        assert case.get("classname") == "scenarios.session.draft"
        assert case.get("name") == "fails[a-b]"


def test_what_was_running_is_an_error(tmp_path: Path) -> None:
    """A scenario that was running when the run died is an error that says what it was in."""
    journal = write_journal(tmp_path / "late", span(1.0, None, "rank:1", "gather", tensor="embed"))
    root = parsed(
        make_run([], unfinished=(unfinished(journal),), not_run=("late/resume",)), tmp_path
    )
    assert (root.get("tests"), root.get("errors"), root.get("failures")) == ("2", "1", "0")
    (error,) = root.iter("error")
    assert error.get("type") == "unfinished"
    assert error.get("message") == "it was running when the run ended: there is no verdict"
    (seen,) = root.iter("system-out")
    assert "not ended: rank:1: gather embed" in (seen.text or "")
    assert [
        case.get("name") for case in root.iter("testcase") if case.find("skipped") is not None
    ] == ["resume"]


# fmt: off
INVALID = [
    # id              schema   the file that it refuses
    ("no-name",       OURS,    '<testsuites><testsuite name="a" tests="1" failures="0" errors="0">'
                               "<testcase/></testsuite></testsuites>"),
    ("no-count",      JENKINS, '<testsuites><testsuite name="a" tests="1"/></testsuites>'),
    ("unknown-child", JENKINS, '<testsuites><testcase name="a"/></testsuites>'),
]
# fmt: on


@pytest.mark.parametrize(
    ("schema", "text"), [case[1:] for case in INVALID], ids=[case[0] for case in INVALID]
)
def test_the_schemas_can_reject(schema: xmlschema.XMLSchema, text: str, tmp_path: Path) -> None:
    """The schemas are no rubber stamps."""
    bad = tmp_path / "bad.xml"
    bad.write_text(text)
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        schema.validate(str(bad))
