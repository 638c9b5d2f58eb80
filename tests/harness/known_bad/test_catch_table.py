"""The table of known-bad modules: what it may hold, and that the shipped one fits what is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from trial_doubles import failed, make_entry, make_result, make_scenarios

from harness.contracts import CheckResult
from harness.errors import UsageError
from harness.known_bad.table import (
    FOLDER,
    HELPERS,
    TABLE,
    against,
    choose,
    diagnosis,
    load,
    require_known,
    usable,
)
from harness.observation import PushSeen, RankEnding, RunSeen
from harness.parts import default_parts
from harness.reporting.result_file import details_of, write_result
from harness.scenario_file import discover, load_file

ROOT = Path(__file__).parents[3]
ENTRY = "mod:\n  wrong: one thing\n  caught_by: [a/b]\n  says: torn\n"

# fmt: off
BAD_TABLES = [
    # id, text, what is said
    ("list", "- no_drain\n", "the table: Input should be a valid dictionary, found ['no_drain']."),
    ("unknown-key", ENTRY + "  sayz: torn\n", "mod.sayz: Extra inputs are not permitted"),
    ("missing-key", ENTRY.replace("  says: torn\n", ""), "mod.says: Field required"),
    ("nobody", ENTRY.replace("[a/b]", "[]"), "mod.caught_by: List should have at least 1 item"),
    ("number", ENTRY.replace("torn", "3"), "mod.says: Input should be a valid string, found 3."),
    ("expression", ENTRY.replace("torn", "'(torn'"),
     "mod.says: Value error, expected a regular expression, found one with missing )"),
    ("syntax", "mod: [\n", "expected a table of known-bad modules, found while parsing"),
]
# fmt: on


@pytest.mark.parametrize(("text", "said"), [row[1:] for row in BAD_TABLES],
                         ids=[row[0] for row in BAD_TABLES])  # fmt: skip
def test_bad_table(text: str, said: str, tmp_path: Path) -> None:
    """A table that is wrong names its file and every mistake in it."""
    path = tmp_path / "catches.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert said in str(raised.value)


def test_missing_table(tmp_path: Path) -> None:
    """A table that is not there is named."""
    with pytest.raises(UsageError, match="expected a table of known-bad modules, found"):
        load(tmp_path / "none.yaml")


def test_shipped_table_has_every_module() -> None:
    """Every module of the folder is in the table, and the other way round; there are enough."""
    modules = {path.stem for path in FOLDER.glob("*.py")} - HELPERS
    assert set(load(TABLE)) == modules
    assert len(modules) >= 25


def test_shipped_table_names_scenarios_that_are_there() -> None:
    """Every scenario that is known to catch a module exists, and is no negative control."""
    files = [load_file(path) for path in discover([ROOT / "scenarios"])]
    scenarios = usable(scenario for file in files for scenario in file.scenarios)
    require_known(load(TABLE), scenarios)


def test_shipped_patterns_say_something() -> None:
    """No pattern is found in a verdict that says nothing of what is wrong."""
    nothing = make_result("a/b", "fail", sentence="outcome: expected x, found y")
    vague = [module for module, entry in load(TABLE).items() if entry.points_right(nothing)]
    assert vague == []


def test_unknown_scenario(tmp_path: Path) -> None:
    """A scenario that has gone is named with the module that it caught."""
    scenarios = make_scenarios(tmp_path, "a/b")
    with pytest.raises(UsageError, match=r"^mod: caught_by: .* found a/c\. "):
        require_known({"mod": make_entry("a/b", "a/c")}, scenarios)


def test_choose() -> None:
    """By a part of the name or a glob; nothing chosen is a usage error that lists the names."""
    entries = {name: make_entry("a/b") for name in ("no_drain", "no_close", "drains_twice")}
    assert list(choose(entries, None)) == list(entries)
    assert list(choose(entries, "drain")) == ["no_drain", "drains_twice"]
    assert list(choose(entries, "no_*")) == ["no_drain", "no_close"]
    with pytest.raises(UsageError, match="none of 3: no_drain, no_close, drains_twice"):
        choose(entries, "nothing")


def test_negative_controls_are_left_out(tmp_path: Path) -> None:
    """A scenario with a target of its own says what that one does wrong."""
    own, free = make_scenarios(tmp_path, "a/own", "a/free").values()
    assert list(usable([against(own, "some.bad:build"), free])) == ["a/free"]


def test_diagnosis() -> None:
    """It is the sentence and what does not hold; a check that holds or is waived has no say."""
    checks = (
        CheckResult(name="invariant.a", ok=False, detail="mixed weights"),
        CheckResult(name="invariant.b", ok=True, detail="the port is free"),
        CheckResult(name="invariant.c", ok=False, detail="a session is open", waived="must be"),
    )
    result = make_result("a/b", "fail", sentence="outcome", checks=checks)
    assert diagnosis(result) == "outcome\ninvariant.a: mixed weights"
    assert make_entry("a/b", says="a: mixed").points_right(result)
    assert not make_entry("a/b", says="port|session").points_right(result)


def test_diagnosis_has_what_the_ranks_raised(tmp_path: Path) -> None:
    """The errors of the pushes are beside the journal, and are part of what is said."""
    result = failed("a/b", "found raised", journal=tmp_path / "journal.jsonl")
    error = "push of version 1 failed (quiescing): flush"
    push = PushSeen(
        number=1,
        ranks={rank: RankEnding(ending="raised", error=error) for rank in (0, 1)},
        before=(),
        after=(),
    )
    run = RunSeen(
        pushes=(push,),
        closing=None,
        fired={},
        events=(),
        leftovers=(),
        seconds=0.1,
        total_seconds=0.1,
    )
    (scenario,) = make_scenarios(tmp_path, "a/b").values()
    oracle = default_parts().oracle
    write_result(result, details_of(scenario, run, control=None, oracle=oracle))
    assert diagnosis(result).splitlines()[2:] == [error]
