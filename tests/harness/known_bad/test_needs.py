"""What each scenario is needed for: the order of the search, what counts, and the table."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from trial_doubles import GOOD_TARGET, Scripted, failed, make_entry, make_result, make_scenarios

from harness.contracts import CheckResult, Verdict
from harness.errors import UsageError
from harness.known_bad import needs_report, table
from harness.known_bad.command import ROOT, load_scenarios
from harness.known_bad.needs import (
    Need,
    Needs,
    Order,
    find_needs,
    load,
    merge,
    mistakes,
    record,
    unneeded,
)
from harness.known_bad.table import Entry, target_of
from harness.known_bad.trials import CONTROL, Setup
from harness.scenario_file import SCENARIOS_ROOT

ENTRIES = {"one": make_entry("x/far"), "two": make_entry("x/far"), "all": make_entry("x/far")}
ENTRIES["all"] = ENTRIES["all"].model_copy(update={"everywhere": True})
WHY = "it shows that a clean push stays clean"


def _find(run: Scripted, folder: Path, *names: str, known: Mapping[str, str]) -> list[Need]:
    return asyncio.run(
        find_needs(
            Setup(ENTRIES, make_scenarios(folder, *names), run, good_target=GOOD_TARGET, jobs=1),
            known,
            lambda need: None,
        )
    )


def test_ends_at_the_first_catch(tmp_path: Path) -> None:
    """The known module is tried first, and another only where it is no longer caught."""
    run = Scripted({
        target_of("two"): {"x/a": failed("x/a", "torn")},
        target_of("one"): {"x/b": failed("x/b", "torn")},
    })  # fmt: skip
    a, b = _find(run, tmp_path, "x/a", "x/b", known={"x/a": "two", "x/b": "two"})
    assert (a.module, a.tried) == ("two", ("two",))
    assert (b.module, b.tried) == ("one", ("two", "one"))
    assert run.ran[:2] == [(GOOD_TARGET, "x/a"), (GOOD_TARGET, "x/b")]


def test_what_catches_everything_is_no_need(tmp_path: Path) -> None:
    """What nearly all catch is not tried, and what fails without faults too is not caught."""
    control = CheckResult(name=CONTROL, ok=False, detail="torn")
    everywhere = make_result("x/a", "fail", checks=(control,))
    run = Scripted({target_of(module): {"x/a": everywhere} for module in ENTRIES})
    (need,) = _find(run, tmp_path, "x/a", known={"x/a": "all"})
    assert need.module is None
    assert need.tried == ("one", "two")


def test_what_the_good_module_does_not_pass_is_not_tried(tmp_path: Path) -> None:
    """It tells nobody apart."""
    run = Scripted({GOOD_TARGET: {"x/a": make_result("x/a", "invalid")}})
    (need,) = _find(run, tmp_path, "x/a", known={})
    assert need == Need("x/a", Verdict.INVALID)
    assert "invalid with the good module too" in needs_report.line(need, Needs())


def test_order() -> None:
    """What the same file catches comes before what its folder does, and that before the rest."""
    entries = {name: make_entry("far/off") for name in ("rest", "folder", "file", "known")}
    known = {"x/a[1]": "file", "x/b": "folder", "x/a[2]": "known"}
    order = Order(entries, known)
    assert order.of("x/a[2]") == ["known", "file", "folder", "rest"]
    order.caught += [("x/c", "rest")] * 3
    assert order.of("x/d") == ["rest", "folder", "file", "known"]


def test_found_is_merged() -> None:
    """What is found replaces what was known; what is gone, or catches nothing, is taken out."""
    catch = failed("a", "torn")
    found = [
        Need("a", Verdict.PASS, ("one", "two"), catch),
        Need("b", Verdict.PASS, ("one", "two")),
        Need("c", Verdict.FAIL),
    ]
    before = Needs(catches={"a": "one", "b": "one", "c": "one", "gone": "one"}, kept={"k": WHY})
    after = merge(before, found, ["a", "b", "c"])
    assert after == Needs(catches={"a": "two", "c": "one"}, kept={"k": WHY})


def test_kept() -> None:
    """A scenario that catches nothing needs somebody to say why it is there."""
    kept, idle = Need("x/a[1-ipc]", Verdict.PASS, ("one",)), Need("x/b", Verdict.PASS, ("one",))
    needs = Needs(kept={"x/a[*-ipc]": WHY})
    assert list(unneeded(needs, [kept, idle])) == [idle]
    assert needs_report.line(kept, needs) == f"kept      x/a[1-ipc]: {WHY}"
    assert needs_report.line(idle, needs) == "UNNEEDED  x/b: catches none of 1 modules"
    assert needs_report.counts(needs, [kept, idle]) == (
        "2 scenarios, 0 catch a module, 1 kept, 1 unneeded: x/b"
    )


def test_mistakes(tmp_path: Path) -> None:
    """A table fits the catalogue and the modules, in both directions."""
    scenarios = make_scenarios(tmp_path, "a", "b", "c")
    needs = Needs(catches={"a": "one", "b": "all", "gone": "one"}, kept={"a": WHY, "nowhere*": WHY})
    again = "Run `resync-chaos known-bad --needed --record`"
    assert mistakes(needs, ENTRIES, scenarios) == [
        f"c: expected a module that it catches, or why it is kept, found neither. {again} with its "
        "file.",
        f"gone: expected a scenario of the catalogue, found none of that name. {again}.",
        f"b: expected a module of catches.yaml that is not caught everywhere, found all. {again}.",
        "kept.a: expected a pattern of scenarios that catch none, found one for a. Take it out.",
        "kept.nowhere*: expected a pattern of scenarios that catch none, found one for no "
        "scenario. Take it out.",
    ]


def test_recorded_is_loaded(tmp_path: Path) -> None:
    """What is written is read again, brackets, stars and all."""
    needs = Needs(catches={"x/a[1.w-ipc]": "one"}, kept={"x/b[*]": WHY})
    record(needs, tmp_path / "needed.yaml")
    assert load(tmp_path / "needed.yaml") == needs


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("catches: [", "expected a table of needs, found"),
        ("kept: {a: no}", "kept.a: Input should be a valid string, found False."),
        ("caught: {}", "caught: Extra inputs are not permitted, found {}."),
    ],
)
def test_broken_tables(text: str, said: str, tmp_path: Path) -> None:
    """Each is said with the file's name."""
    path = tmp_path / "needed.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        load(path)
    assert str(path) in str(raised.value)
    assert said in str(raised.value)


def test_every_scenario_is_needed() -> None:
    """The table of this catalogue names a module, or a reason, for each of its scenarios."""
    entries: dict[str, Entry] = table.load()
    scenarios = table.usable(load_scenarios([ROOT / SCENARIOS_ROOT]))
    assert mistakes(load(), entries, scenarios) == []
