"""Whole runs with real processes: what goes well, and what every kind of bad target gets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from real_runs import RealRuns, make_scenario

import harness.conductor
from harness.contracts import ScenarioResult, Verdict
from harness.journal import read_journal

pytestmark = pytest.mark.processes

DEADLOCK_CONTROL = "conformance.known_bad.agree_after_send:build"
REFUSED_START = {"kind": "reject", "at": "engine.start", "engine": 0}


def _failed(result: ScenarioResult) -> dict[str, str]:
    return {check.name: check.detail for check in result.checks if not check.ok}


@pytest.mark.parametrize("transport", ["ipc", "nccl"])
def test_clean(real_runs: RealRuns, tmp_path: Path, transport: str) -> None:
    """Two clean pushes pass on either transport, and their journal has what happened."""
    scenario = make_scenario(
        transport=transport,
        pushes=2,
        trainer={"ranks": 4, "tensor_parallel": 2},
        engines={"count": 2},
    )
    result = real_runs.run_one(scenario, tmp_path)
    assert (result.verdict, _failed(result)) == (Verdict.PASS, {})
    assert (result.outcomes, result.attempts) == (("resumed",) * 2, (1, 1))
    finals = [(final.version, final.generation, final.weights) for final in result.engines]
    assert finals == [("2", "running", "push 2")] * 2
    assert result.evidence == {}
    assert 0 < result.seconds < result.total_seconds < 10

    assert result.journal == tmp_path / "tests/one/journal.jsonl"
    events = read_journal(result.journal)
    count = Counter((event["who"], event["event"]) for event in events)
    assert count["engine:1", "version"] == 3  # two pushes and the closing one
    assert count["engine:1", "token"] > 0
    assert count["rank:3", "gather"] > 0
    logs = {path.name for path in result.journal.parent.glob("*.log")}
    assert logs == {f"rank-{i}.log" for i in range(4)} | {f"engine-{i}.log" for i in range(2)}


def test_deadlock_is_named(real_runs: RealRuns, tmp_path: Path) -> None:
    """A deadlock is named in a moment: who is in what, for whom, with everyone's stacks."""
    scenario = make_scenario(
        "tests/one",
        REFUSED_START,
        target=DEADLOCK_CONTROL,
        trainer={"ranks": 4, "tensor_parallel": 2},
        expect="raised",
    )
    result = real_runs.run_one(scenario, tmp_path)
    assert result.verdict == Verdict.HANG
    assert result.sentence.startswith(
        "push 1: deadlock: rank 0 is in all_reduce #2 of the default group while rank 1 waits for "
        "it in the gather of model.embed_tokens.weight and ranks 2-3 wait for "
    )
    assert result.sentence.endswith(", would end it")  # a process group's time-out, and when
    assert sorted(result.evidence) == [*(f"rank:{rank}" for rank in range(4)), "wait-for graph"]
    assert "agree_after_send.py" in result.evidence["rank:0"]
    assert "in _gather_shards" in result.evidence["rank:1"]
    (halt,) = [event for event in read_journal(result.journal) if event["event"] == "halt"]
    assert halt["waited_s"] < 1.5
    assert set(_failed(result)) == {"expect.outcome"}  # the closing push worked with new ranks


def test_overran(real_runs: RealRuns, tmp_path: Path) -> None:
    """A target that loops for ever is ended by the deadline, with the line that it loops in."""
    scenario = make_scenario(target="Loops", deadline_s=1.0)
    result = real_runs.run_one(scenario, tmp_path)
    assert result.verdict == Verdict.HANG
    assert result.sentence == (
        "push 1: overran: the deadline of 1 s passed; stuck, unproven: ranks 0-1 are in no "
        "collective and sleep"
    )
    assert result.outcomes == ("overran",)
    for rank in ("rank:0", "rank:1"):
        assert f"{rank} is in no collective and sleeps\n" in result.evidence[rank]
        assert "bad_targets.py" in result.evidence[rank]


# fmt: off
BAD = [
    # id, target, how much of what fails, where
    ("leaves-in-a-push", "Leaves", {
        "expect.outcome": "outcome: expected resumed, found mixed",
        "invariant.ended_in_time": "push 1: rank 1 ended with status 0: leaving",
        "invariant.ranks_agree":
            "push 1: the ranks ended differently: {0: 'returned', 1: 'died'}",
    }),
    ("publishes-nothing", "Idle", {
        "invariant.serving_consistent":
            "after push 1, engine 0 serves start weights, expected those of push 1; after push 1, "
            "engine 0 serves under label 'default', the trainer counts '1'",
    }),
    ("publishes-a-label-only", "PublishesOnly", {
        "invariant.serving_consistent":
            "after push 1, engine 0 serves start weights, expected those of push 1",
        "invariant.nothing_torn_served":
            "engine:0 served from start weights under label '1', which stands for the weights of "
            "push 1",
    }),
]
# fmt: on


@pytest.mark.parametrize(
    ("target", "details"), [case[1:] for case in BAD], ids=[case[0] for case in BAD]
)
def test_bad_targets_fail(
    real_runs: RealRuns, tmp_path: Path, target: str, details: dict[str, str]
) -> None:
    """A target that says that all went well is not believed."""
    result = real_runs.run_one(make_scenario(target=target), tmp_path)
    failed = _failed(result)
    assert result.verdict == Verdict.FAIL
    for name, detail in details.items():
        assert failed[name].startswith(detail), failed[name]


def test_close_is_waited_for(
    real_runs: RealRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that does not leave when it is told to close is left behind, and said to be."""
    monkeypatch.setattr(harness.conductor, "CLOSE_LIMIT_S", 0.5)
    result = real_runs.run_one(make_scenario(target="StaysOpen"), tmp_path)
    left = _failed(result)["invariant.nothing_left_behind"]
    assert left == "rank:1, told to close: found it alive after 0.5 s"


def test_restarts(real_runs: RealRuns, tmp_path: Path) -> None:
    """Engines and trainers are started again between pushes, engines on their own port."""
    scenario = make_scenario(
        pushes=3,
        engines={"count": 2},
        restarts=(
            {"what": "engine", "engine": 1, "before_push": 2},
            {"what": "trainer", "before_push": 3},
        ),
        tolerates="restarts are not seen in the outcome",
    )
    result = real_runs.run_one(scenario, tmp_path)
    assert (result.verdict, _failed(result)) == (Verdict.PASS, {})
    started = Counter(e["who"] for e in read_journal(result.journal) if e["event"] == "started")
    assert started == {"engine:0": 1, "engine:1": 2}


def test_killed_rank(real_runs: RealRuns, tmp_path: Path) -> None:
    """A rank that the scenario kills is excused, and the closing push has a new trainer."""
    fault = {"kind": "kill", "at": "rank.gather", "rank": 1}
    scenario = make_scenario("tests/one", fault, expect="raised")
    result = real_runs.run_one(scenario, tmp_path)
    assert (result.verdict, _failed(result)) == (Verdict.PASS, {})
