"""Trials of known-bad modules: when they end, what counts as a catch, and what is run for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from trial_doubles import GOOD_TARGET, Scripted, failed, make_entry, make_result, make_scenarios

from harness.known_bad.table import target_of
from harness.known_bad.trials import Setup, Trial, against_all, until_caught

ONE, TWO = target_of("one"), target_of("two")


def _until_caught(run: Scripted, folder: Path, entries: dict[str, tuple[str, ...]]) -> list[Trial]:
    told: list[str] = []
    trials = asyncio.run(
        until_caught(
            Setup(
                {module: make_entry(*names) for module, names in entries.items()},
                make_scenarios(folder, "a", "b", "c"),
                run,
                good_target=GOOD_TARGET,
                jobs=1,
            ),
            lambda trial: told.append(trial.module),
        )
    )
    assert told == list(entries)
    return trials


def test_ends_at_the_first_catch(tmp_path: Path) -> None:
    """The scenarios run in the order of the table, and none after the first that catches."""
    run = Scripted({ONE: {"b": failed("b", "torn"), "c": failed("c", "torn")}})
    (trial,) = _until_caught(run, tmp_path, {"one": ("a", "b", "c")})
    assert run.ran == [(ONE, "a"), (ONE, "b"), (GOOD_TARGET, "b")]
    assert [result.name for result in trial.catches] == ["b"]
    assert trial.points_right


def test_each_module_has_its_own_runs(tmp_path: Path) -> None:
    """One module's catch is no other's, and the good one runs once on each scenario that caught."""
    run = Scripted({ONE: {"a": failed("a", "torn")}, TWO: {"a": failed("a", "else")}})
    one, two = _until_caught(run, tmp_path, {"one": ("a",), "two": ("a",)})
    assert (one.points_right, two.points_right) == (True, False)
    assert run.ran.count((GOOD_TARGET, "a")) == 1


def test_a_hang_is_a_catch_and_invalid_is_none(tmp_path: Path) -> None:
    """A scenario that proved nothing has not caught anybody."""
    run = Scripted({
        ONE: {"a": make_result("a", "invalid"), "b": make_result("b", "hang")},
        TWO: {"a": make_result("a", "invalid")},
    })  # fmt: skip
    one, two = _until_caught(run, tmp_path, {"one": ("a", "b"), "two": ("a", "b")})
    assert [result.name for result in one.catches] == ["b"]
    assert [result.name for result in two.results] == ["a", "b"]
    assert two.catches == []


def test_what_the_good_module_fails_is_no_catch(tmp_path: Path) -> None:
    """A scenario that nobody passes tells nobody apart."""
    run = Scripted({ONE: {"a": failed("a", "torn")}, GOOD_TARGET: {"a": failed("a", "torn")}})
    (trial,) = _until_caught(run, tmp_path, {"one": ("a",)})
    assert trial.catches == []
    assert trial.disputed == {"a"}
    assert not trial.points_right


def test_against_all(tmp_path: Path) -> None:
    """Every module meets every scenario, after the good one, which decides what counts."""
    run = Scripted({
        ONE: {"a": failed("a", "torn"), "b": failed("b", "torn"), "c": make_result("c", "hang")},
        GOOD_TARGET: {"b": make_result("b", "invalid")},
    })  # fmt: skip
    one, two = asyncio.run(
        against_all(
            Setup(
                {"one": make_entry("a"), "two": make_entry("a")},
                make_scenarios(tmp_path, "a", "b", "c"),
                run,
                good_target=GOOD_TARGET,
                jobs=1,
            ),
            lambda trial: None,
        )
    )
    targets = (GOOD_TARGET, ONE, TWO)
    assert run.ran == [(target, name) for target in targets for name in "abc"]
    assert [result.name for result in one.catches] == ["a", "c"]
    assert two.catches == []
