"""The benchmark measures what it says, and its budgets hold."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from real_runs import RealRuns
from rich.console import Console

from harness.bench.__main__ import RANKS, Bench, _push_seconds, _scenario, _show
from harness.observation import RunSeen

NAMED_WITHIN_S = 0.5
MONITOR_CPU = {
    "with_s": 0.503,
    "without_s": 0.5,
    "share": 0.006,
    "error": 0.002,
    "launcher_share": 0.004,
    "launcher_error": 0.001,
    "journal_s": 0.01,
    "num_events": 1200,
}


def _run(*events: tuple[float, str, str]) -> RunSeen:
    return RunSeen(
        pushes=(),
        closing=None,
        fired={},
        events=tuple(
            {"t": t, "who": who, "event": "command", "command": command}
            for t, who, command in events
        ),
        leftovers=(),
        seconds=0.0,
        total_seconds=0.0,
    )


def test_push_seconds() -> None:
    """A push lasts from its begin to its end on rank 0; connects do not count."""
    run = _run(
        (1.0, "rank:0", "connect"),
        (2.0, "rank:0", "connect"),
        (3.0, "rank:0", "push"),
        (3.5, "rank:1", "push"),
        (3.25, "rank:0", "push"),
        (4.0, "rank:0", "push"),
        (5.0, "rank:0", "push"),
    )
    assert _push_seconds(run) == [0.25, 1.0]


def test_what_is_measured() -> None:
    """The scenario is the one of the budget: 4 ranks, 2 engines, one failure and one resend."""
    scenario = _scenario("nccl", fault="engine.update")
    assert (scenario.trainer.ranks, scenario.engines.count, scenario.pushes) == (4, 2, 1)
    assert [(f.kind, f.at, f.engine, f.nth) for f in scenario.faults] == [
        ("reject", "engine.update", "all", (1,))
    ]


def test_show() -> None:
    """Every measurement has a line with its reference and their ratio."""
    found = {
        "reference_spawn_s": 4.0,
        "reference_hang_s": 10.5,
        "scenario_s": {"ipc": 0.2, "nccl": 0.16},
        "times_faster": {"ipc": 20.0, "nccl": 25.0},
        "deadlock_named_s": 0.21,
        "deadlock_named_max_s": 0.25,
        "push_ms": {"resync": 30.0, "bare": 25.0, "difference": 5.0},
        "growth_s": {ranks: ranks / 10 for ranks in RANKS},
        "naming_s": {"at rest": {"hangs/sketch[a-4]": [0.16, 0.2]}, "loaded": {"b": [0.2, 1.5]}},
        "monitor_cpu": MONITOR_CPU,
        "loading_s": {"checked_s": 0.2, "bare_s": 0.4},
    }
    console = Console(width=140, file=io.StringIO())
    _show(found, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    words_of_each = (
        "20.0 x",
        "25.0 x",
        "50 x",
        "0.50 x",
        "+0.50 % of 1 s",
        "32.0 x for 32 x ranks",
        "hangs/sketch[a-4]",
        "0.200 s at most",
        "+0.6% +- 0.2%, budget of 2%",
    )
    for words in words_of_each:
        assert words in text


@pytest.mark.processes
def test_deadlock_budget(real_runs: RealRuns, tmp_path: Path) -> None:
    """The deadlocking control is named in time; best of three, since other tests run too."""
    bench = Bench(real_runs.launcher, real_runs.parts, tmp_path, repeat=1, pairs=2)
    assert min(real_runs.do(bench._deadlock()) for _ in range(3)) < NAMED_WITHIN_S
