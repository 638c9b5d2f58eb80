"""What the monitor costs is measured with it and without it, and on all processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from real_runs import RealRuns, make_scenario

from harness.bench import cost
from harness.bench.__main__ import Bench
from harness.journal import read_journal

FOUND = {
    "with_s": 0.515,
    "without_s": 0.5,
    "share": 0.03,
    "error": 0.002,
    "launcher_share": 0.004,
    "launcher_error": 0.001,
    "journal_s": 0.01,
    "num_events": 1200,
}


def test_rows() -> None:
    """Each line has the figure and its share; a broken budget is said so."""
    whole, launcher, journal = cost.rows(FOUND)
    assert whole[1:] == ("0.515 s", "0.500 s", "+3.0% +- 0.2%, OVER the budget of 2%")
    assert launcher[3] == "+0.4% +- 0.1%"
    assert journal[1:] == ("10.0 ms", "0.515 s", "+1.9%")
    assert cost.rows(FOUND | {"share": 0.01})[0][3] == "+1.0% +- 0.2%, budget of 2%"


def test_journal(tmp_path: Path) -> None:
    """The events of a run are written and read as they were, and nothing is left."""
    events: list[dict[str, Any]] = [
        {"t": float(n), "who": "rank:0", "event": "gather", "tensor": "embed", "phase": "begin"}
        for n in range(200)
    ]
    assert 0.0 < cost.journal(events, tmp_path / "again.jsonl") < 1.0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_monitoring(real_runs: RealRuns, tmp_path: Path) -> None:
    """Both kinds of run pass, their children's CPU time is counted, and only one is recorded."""
    bench = Bench(real_runs.launcher, real_runs.parts, tmp_path, repeat=1, pairs=2)
    found = real_runs.do(bench._monitoring())
    assert found["without_s"] > 0.05  # a few processes: they alone take more
    assert found["num_events"] > 100
    assert set(cost.rows(found)[0][3]) & set("0123456789")
    real_runs.check_nothing_is_left()


@pytest.mark.processes
@pytest.mark.parametrize("monitored", [True, False])
def test_unwatched(real_runs: RealRuns, tmp_path: Path, monitored: bool) -> None:
    """Nobody looks at a run that is not monitored: its stall is not told of."""
    bench = Bench(real_runs.launcher, real_runs.parts, tmp_path, repeat=1, pairs=2)
    late = {"kind": "slow", "at": "engine.update", "engine": 0, "seconds": 1.0}
    run = real_runs.do(bench._conduct(make_scenario("tests/one", late), monitored=monitored))
    assert [push.outcome for push in run.pushes] == ["resumed"]
    assert run.pushes[0].stalls == (("waiting",) if monitored else ())
    told = [e for e in read_journal(tmp_path / "bench/journal.jsonl") if e["event"] == "diagnosis"]
    assert bool(told) is monitored
    real_runs.check_nothing_is_left()
