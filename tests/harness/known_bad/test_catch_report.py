"""What is printed and written of trials, and that the docs page is the table's."""

from __future__ import annotations

import json
from pathlib import Path

from trial_doubles import failed, make_entry, make_result

from harness.contracts import CheckResult
from harness.known_bad import report
from harness.known_bad.table import load
from harness.known_bad.trials import Trial

PAGE = Path(__file__).parents[3] / "docs" / "known-bad.md"


def _trials() -> list[Trial]:
    caught = [make_result("a"), failed("b", "torn weights"), make_result("c", "hang")]
    return [
        Trial("no_scrub", make_entry("b", says="torn"), caught, 1.25),
        Trial("no_close", make_entry("b", says="session"), [failed("b", "torn weights")], 0.5),
        Trial("no_flush", make_entry("a", "b"), [make_result("a"), failed("b", "torn")], 0.75,
              frozenset({"b"})),
    ]  # fmt: skip


def test_lines() -> None:
    """Who caught it, with what, and whether that points at the right place; or who tried."""
    assert [report.line(trial) for trial in _trials()] == [
        "caught    no_scrub: one thing (1.2 s)\n  by b: fail, right place: torn weights",
        "caught    no_close: one thing (0.5 s)\n  by b: fail, WRONG PLACE: torn weights",
        "SURVIVES  no_flush: one thing (0.8 s)\n"
        "  tried: a (pass), b (fail, and of the good module too)",
    ]
    assert report.counts(_trials()) == (
        "3 modules, 2 caught, 1 survive: no_flush; the diagnosis points elsewhere for no_close"
    )


def test_needed_by_nobody() -> None:
    """A scenario that catches no module is listed, also one that only a dispute is about."""
    assert report.needed_by_nobody(_trials(), ["a", "b", "c", "d"]) == ["a", "d"]
    assert report.needed_by_nobody(_trials()[2:], ["a", "b"]) == ["a", "b"]


def test_any_scenario_would_have_caught() -> None:
    """What is caught everywhere, or without faults too, is no reason to keep a scenario."""
    control = CheckResult(name="control.succeeds", ok=False, detail="without faults: torn")
    always = make_result("a", "fail", sentence=control.detail, checks=(control,))
    sketch = make_entry("b").model_copy(update={"everywhere": True})
    trials = [
        Trial("no_pause", make_entry("a"), [always, failed("b", "torn")]),
        Trial("no_agreement", sketch, [failed("c", "torn")]),
    ]
    assert all(trial.catches for trial in trials)
    assert report.needed_by_nobody(trials, ["a", "b", "c"]) == ["a", "c"]
    assert report.as_json(trials, ["a", "b"])["catches_of"] == {"a": [], "b": ["no_pause"]}


def test_matrix(tmp_path: Path) -> None:
    """The files of a full run: every catch of every module, and what nobody needs."""
    written = report.write(tmp_path, _trials(), ["a", "b", "c"])
    assert [path.name for path in written] == ["matrix.json", "matrix.md"]
    found = json.loads(written[0].read_text())
    assert [each["survives"] for each in found["modules"]] == [False, False, True]
    assert [
        (each["scenario"], each["verdict"], each["right_place"])
        for each in found["modules"][0]["caught_by"]
    ] == [("b", "fail", True), ("c", "hang", False)]
    assert found["modules"][0]["passed_by"] == ["a"]
    assert found["needed_by_nobody"] == ["a"]
    text = written[1].read_text()
    assert "| `no_scrub` | one thing | `b` and 1 more | fail | yes | 1.2 |" in text
    assert "| `no_flush` | one thing | nobody |  | no | 0.8 |" in text
    assert "## Needed by nobody: 1 of 3 scenarios\n\n- `a`\n" in text


def test_first_catch_has_no_matrix(tmp_path: Path) -> None:
    """Where modules ran until their first catch, nothing can be said of what nobody needs."""
    written = report.write(tmp_path, _trials(), None)
    assert [path.name for path in written] == ["first_catch.json", "first_catch.md"]
    assert json.loads(written[0].read_text())["needed_by_nobody"] is None
    assert "Needed by nobody" not in written[1].read_text()


def test_page() -> None:
    """The page is made from the table; `resync-chaos known-bad --page docs/known-bad.md`."""
    assert PAGE.read_text(encoding="utf-8") == report.page(load())
    assert "| `one` | one thing | `a\\|b` |\n" in report.page({"one": make_entry("a|b")})
