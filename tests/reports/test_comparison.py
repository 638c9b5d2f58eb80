"""Two runs compared: what is a regression, and what is noise or the machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from sample_results import make_result
from sample_runs import make_run, unfinished

from harness.contracts import Verdict
from harness.reporting.run_folder import Run
from reports.comparison import Comparison, compare_runs

P, F, H = Verdict.PASS, Verdict.FAIL, Verdict.HANG


def run_of(verdicts: Mapping[str, Verdict], **fields: object) -> Run:
    return make_run(
        [make_result(n, verdict=v, sentence="why") for n, v in verdicts.items()], **fields
    )


def compared(old: Run, new: Run) -> Comparison:
    return compare_runs(old, new, slower_ratio=1.5, slower_s=0.5)


# fmt: off
CHANGES = [
    # id          old         new         first line                              regressions
    ("same",      {"a": P},   {"a": P},   "1 scenarios before, 1 now",            0),
    ("same-fail", {"a": F},   {"a": F},   "1 scenarios before, 1 now",            0),
    ("worse",     {"a": P},   {"a": H},   "worse    a: pass -> hang; why",        1),
    ("from-bad",  {"a": F},   {"a": H},   "worse    a: fail -> hang; why",        1),
    ("better",    {"a": H},   {"a": P},   "better   a: hang -> pass",             0),
    ("less-bad",  {"a": H},   {"a": F},   "better   a: hang -> fail",             0),
    ("new",       {},         {"a": P},   "new      a: not there -> pass",        0),
    ("new-bad",   {},         {"a": F},   "worse    a: not there -> fail; why",   1),
    ("gone",      {"a": P},   {},         "gone     a: pass -> gone",             0),
]
# fmt: on


@pytest.mark.parametrize(
    ("old", "new", "first", "num"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES]
)
def test_changes(old: dict[str, Verdict], new: dict[str, Verdict], first: str, num: int) -> None:
    """A verdict that got worse, and a new scenario that does not pass, are regressions."""
    found = compared(run_of(old), run_of(new))
    assert found.lines[0].startswith(first)
    assert found.num_regressions == num


def test_not_finished() -> None:
    """A scenario that was running when the new run died, or never began, is a regression."""
    old = run_of({"late/pause": P, "b": P})
    new = run_of({}, unfinished=(unfinished(Path("none")),), not_run=("b",))
    assert compared(old, new).lines[:2] == (
        "worse    b: pass -> not run",
        "worse    late/pause: pass -> unfinished",
    )


def timed(seconds: list[float]) -> Run:
    return make_run([make_result(f"s{n}", seconds=s) for n, s in enumerate(seconds)])


# fmt: off
TIMES = [
    # id                 old                new                       slower
    ("steady",           [1.0] * 6,         [1.0] * 6,                []),
    ("noise",            [1.0] * 6,         [1.0] * 5 + [1.4],        []),
    ("slower",           [1.0] * 6,         [1.0] * 5 + [2.1],        ["s5"]),
    ("slower-machine",   [1.0] * 6,         [3.0] * 6,                []),
    ("both",             [1.0] * 6,         [3.0] * 5 + [9.0],        ["s5"]),
    ("faster-machine",   [1.0] * 6,         [0.5] * 5 + [1.5],        ["s5"]),
    ("short",            [0.001] * 6,       [0.001] * 5 + [0.3],      []),
    ("few",              [1.0],             [2.0],                    ["s0"]),
    ("zero",             [0.0] * 6,         [0.0] * 6,                []),
]
# fmt: on


@pytest.mark.parametrize(
    ("old", "new", "slower"), [c[1:] for c in TIMES], ids=[c[0] for c in TIMES]
)
def test_slower(old: list[float], new: list[float], slower: list[str]) -> None:
    """Slower by ratio and by seconds, after the machine's part is taken out."""
    found = compared(timed(old), timed(new))
    named = [line.split()[1].rstrip(":") for line in found.lines if line.startswith("slower")]
    assert named == slower
    assert found.num_regressions == len(slower)


def test_times_of_what_failed_are_not_compared() -> None:
    """A scenario that failed ended when it failed: its time says nothing."""
    old = make_run([make_result("a", seconds=0.1, verdict=F)])
    new = make_run([make_result("a", seconds=9.0, verdict=P)])
    assert compared(old, new).num_regressions == 0
