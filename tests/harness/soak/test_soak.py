"""The runs of the soak are those that it says, and a false alarm would be counted."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from pathlib import Path

import pytest
from real_runs import RealRuns, make_scenario

from harness.contracts import Verdict
from harness.processes import state
from harness.scenario import Scenario
from harness.soak.__main__ import Soak, main
from harness.soak.busy import busy_processes
from harness.soak.kinds import KINDS, Plan, RunKind, plan
from harness.soak.tally import SoakRun

KIND = RunKind(name="a canary", file="at_once.yaml", percent=100)
FIRST_DESIGN = "conformance.known_bad.agree_after_send:build"
REFUSED_START = {"kind": "reject", "at": "engine.start", "engine": 0}


def test_plan() -> None:
    """Every kind gets its share of a thousand, and a quarter of it beside a load."""
    made = plan(1000)
    assert (len(made.at_rest), len(made.loaded)) == (750, 250)
    assert sum(kind.percent for kind in KINDS) == 100
    for runs, num in ((made.at_rest, 750), (made.loaded, 250)):
        counts = Counter(kind for kind, _ in runs)
        for kind in KINDS:
            assert abs(counts[kind] - num * kind.percent / 100) <= 1
    for kind in KINDS:
        cells = {scenario.name for each, scenario in made.at_rest if each is kind}
        assert len(cells) == min(len(kind.scenarios()), 750 * kind.percent // 100)


def test_slow_runs_are_among_them() -> None:
    """A gather of 3 s, engines that answer late and a rank short of CPU are in each plan of 100."""
    scenarios = [scenario for _, scenario in plan(100).at_rest]
    waits = {
        (fault.at, fault.options().get("seconds"))
        for scenario in scenarios
        for fault in scenario.faults
    }
    assert ("rank.gather", 3.0) in waits
    assert ("engine.update", 2.0) in waits
    assert any(kind.rank_entry for kind, _ in plan(100).loaded)


def test_busy_processes_end() -> None:
    """They use their CPU while they are wanted, and are gone afterwards, also after an error."""
    with contextlib.suppress(ZeroDivisionError), busy_processes(2) as pids:
        assert [state(pid) is not None for pid in pids] == [True, True]
        raise ZeroDivisionError
    assert [state(pid) for pid in pids] == [None, None]
    with busy_processes(0) as none:
        assert none == []


def _soak(
    real_runs: RealRuns, out_dir: Path, *runs: tuple[RunKind, Scenario], ends_s: float = 1e12
) -> list[SoakRun]:
    found: list[SoakRun] = []
    soak = Soak(
        real_runs.launcher,
        real_runs.parts,
        out_dir,
        runs=found,
        jobs=2,
        ends_s=ends_s,
        tell=lambda: None,
    )
    real_runs.do(soak.run(Plan(at_rest=runs, loaded=())))
    real_runs.check_nothing_is_left()
    return found


@pytest.mark.processes
def test_a_run_of_each_kind_is_good(real_runs: RealRuns, tmp_path: Path) -> None:
    """None is called a hang; a good run leaves nothing, and a slow rank tells its share."""
    kinds = [kind for kind in KINDS if kind.name not in ("a gather takes 3 s", "a rank is lost")]
    found = _soak(real_runs, tmp_path, *((kind, kind.scenarios()[0]) for kind in kinds))
    assert [(run.sentence, run.calls) for run in found if not run.is_good] == []
    assert {run.kind for run in found} == {kind.name for kind in kinds}
    shares = {run.kind: run.share for run in found if run.share is not None}
    assert set(shares) == {"a rank at 1/10 CPU", "a rank at 1/70 CPU"}
    assert max(shares.values()) < 0.5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_a_hang_is_counted(real_runs: RealRuns, tmp_path: Path) -> None:
    """A run that deadlocks is a hang, whatever it was meant to be, and its folder stays."""
    scenario = make_scenario("canary", REFUSED_START, target=FIRST_DESIGN, expect="raised")
    (run,) = _soak(real_runs, tmp_path, (KIND, scenario))
    assert (run.verdict, run.called_a_hang, run.is_good) == (Verdict.HANG, True, False)
    assert run.calls[-1] == "deadlock"
    assert (run.out_dir / "journal.jsonl").exists()


@pytest.mark.processes
def test_no_run_after_its_time(real_runs: RealRuns, tmp_path: Path) -> None:
    """Once the time is over, none is started."""
    scenario = KIND.scenarios()[0]
    assert _soak(real_runs, tmp_path, (KIND, scenario), ends_s=time.monotonic() - 1.0) == []


@pytest.mark.parametrize("word", ["0", "-3", "many"])
def test_usage(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A number of runs that is none is a usage error, before anything starts."""
    with pytest.raises(SystemExit) as exit_info:
        main(["--runs", word, "--out", os.devnull])
    assert exit_info.value.code == 2
    assert f"expected a number from 1, found '{word}'" in capsys.readouterr().err
