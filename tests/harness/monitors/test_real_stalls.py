"""Stalls of real processes: each is named for what it is, soon, and nothing ends the harness."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from real_runs import RealRuns, make_scenario

from harness.contracts import ScenarioResult, Verdict
from harness.journal import read_journal
from harness.reporting.result_file import read_result
from reports.table import FULL_EVIDENCE

pytestmark = pytest.mark.processes

# fmt: off
OVERRUNS = [
    # id, target, class, part of the sentence, part of rank 1's evidence
    ("leaked-lock", "LeaksALock", "stuck", "stuck, unproven: rank 1 is in no collective and waits "
     "for a lock without a limit while rank 0 waits for it in barrier #", "in push"),
    ("gil", "HoldsTheGil", "busy", "busy: rank 1 does not answer, using ", "in push"),
    ("stopped", "Stops", "frozen", "frozen: rank 1 is stopped", "process state: T"),
    ("deaf-to-sigterm", "IgnoresSigterm", "stuck", "stuck, unproven: rank 1 is in no collective "
     "and sleeps while rank 0 waits for it in barrier #", "in push"),
    ("in-c", "BlocksInC", "stuck", "stuck, unproven: rank 1 is in no collective while rank 0 waits "
     "for it in barrier #", "in push"),
    ("in-c-with-the-gil", "BlocksInCWithTheGil", "stuck", "stuck, unproven: rank 1 does not "
     "answer, using ", "in push"),
]
ENDS = [
    # id, target, class, part of the sentence
    ("computes", "Computes", "slow", "rank 1 was at work for 1."),
    ("waits-until-its-limit", "WaitsABit", "waiting",
     "rank 1 waits for a lock or an event (its own limit, in "),
    ("leaves", "Leaves", "crashed", "rank 1 ended with status 0"),
]
SAME_PLACE = [
    # fault kind, options, class, when the monitor says so, in seconds after the last progress
    ("kill",   {},               "crashed", 0.5),
    ("freeze", {},               "frozen",  1.0),
    ("gil",    {},               "busy",    2.5),
    ("slow",   {"seconds": 1.5}, "slow",    1.0),
]
# fmt: on


def _told(result: ScenarioResult, event: str) -> list[dict[str, Any]]:
    return [each for each in read_journal(result.journal) if each["event"] == event]


@pytest.mark.parametrize(
    ("target", "kind", "sentence", "stack"),
    [case[1:] for case in OVERRUNS],
    ids=[case[0] for case in OVERRUNS],
)
def test_what_never_ends(
    real_runs: RealRuns, tmp_path: Path, target: str, kind: str, sentence: str, stack: str
) -> None:
    """The deadline ends it, whatever the process does with signals, and it is told what it was."""
    result = real_runs.run_one(make_scenario(target=target, deadline_s=3.0), tmp_path)
    assert result.verdict is Verdict.HANG
    assert sentence in result.sentence
    halt, *_ = _told(result, "halt")
    assert (halt["kind"], halt["classification"]) == ("overran", kind)
    assert stack in result.evidence["rank:1"]
    assert "in push" in result.evidence["rank:0"]
    assert set(result.evidence) == {"wait-for graph", "rank:0", "rank:1", "engine:0"}
    assert result.evidence["wait-for graph"].splitlines()[2].startswith("who")
    written, _ = read_result(result.journal.with_name(FULL_EVIDENCE))
    assert (written.verdict, written.evidence) == (Verdict.HANG, result.evidence)


@pytest.mark.parametrize(
    ("target", "kind", "sentence"), [case[1:] for case in ENDS], ids=[case[0] for case in ENDS]
)
def test_what_ends_by_itself(
    real_runs: RealRuns, tmp_path: Path, target: str, kind: str, sentence: str
) -> None:
    """Nothing is halted, and the journal says what kept the others waiting."""
    result = real_runs.run_one(make_scenario(target=target), tmp_path)
    assert _told(result, "halt") == []
    told = [each for each in _told(result, "diagnosis") if each["kind"] == kind]
    assert told
    assert told[0]["sentence"].startswith(sentence)
    assert told[0]["of"] == ["rank:1"]


def test_a_deadlock_is_named_at_once(real_runs: RealRuns, tmp_path: Path) -> None:
    """Who returned while others wait for it is named, with when a time-out would end it."""
    result = real_runs.run_one(
        make_scenario(target="SkipsABarrier", trainer={"ranks": 4, "tensor_parallel": 1}), tmp_path
    )
    halt, *_ = _told(result, "halt")
    assert halt["sentence"].startswith(
        "rank 1 has returned while ranks 0, 2, 3 wait for it in barr"
    )
    assert halt["sentence"].endswith(", would end it")
    assert "only the 30 s time-out of the default group, in 29." in halt["sentence"]
    assert halt["waited_s"] < 1.0
    assert [row["waits_for"] for row in halt["table"]] == [
        "rank 1, which has returned" if rank != 1 else "-" for rank in range(4)
    ]


@pytest.mark.parametrize(
    ("fault", "options", "kind", "limit_s"), SAME_PLACE, ids=[case[0] for case in SAME_PLACE]
)
def test_same_rank_same_point(
    real_runs: RealRuns,
    tmp_path: Path,
    fault: str,
    options: Mapping[str, Any],
    kind: str,
    limit_s: float,
) -> None:
    """Killing, freezing, GIL-holding and slowing a rank at one point are told apart, in time."""
    scenario = make_scenario(
        "tests/one",
        {"kind": fault, "at": "rank.gather", "rank": 1, "nth": (3,), **options},
        timeouts={"request_s": 2.0, "process_group_s": 5.0},
        trainer={"ranks": 4},
        expect="resumed" if fault == "slow" else "raised",
        tolerates="a slow push succeeds as well",
    )
    result = real_runs.run_one(scenario, tmp_path)
    assert result.verdict is Verdict.PASS, result.sentence
    told = [each for each in _told(result, "diagnosis") if each["of"] == ["rank:1"]]
    assert {each["kind"] for each in told} == {kind}
    assert told[0]["waited_s"] < limit_s
