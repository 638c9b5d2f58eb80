"""What the tests of the running side share: one launcher for a session, and watches over fakes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from real_runs import RealRuns
from watch_world import Answer, MakeWorld, World

import harness.watch
from harness.monitors import kernel
from harness.monitors.snapshot import ProcessAt


@pytest.fixture(scope="session")
def real_runs() -> Iterator[RealRuns]:
    """Run scenarios with the fakes; torch is imported once for all of them."""
    runs = RealRuns()
    yield runs
    runs.close()


@pytest.fixture
def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeWorld]:
    """Make worlds whose watch loses patience after milliseconds."""
    limits = {"QUIET_S": 0.02, "POLL_S": 0.002, "EVIDENCE_LIMIT_S": 0.02, "DEATH_LIMIT_S": 0.02}
    for name, value in limits.items():
        monkeypatch.setattr(harness.watch, name, value)
    monkeypatch.setattr(kernel, "look_at", lambda pid: ProcessAt())
    monkeypatch.setattr(kernel, "cpu_s", lambda pid: None)
    worlds: list[World] = []

    def make(*answers: Answer, limit_s: float = 5.0) -> World:
        worlds.append(World(tmp_path / f"{len(worlds)}.jsonl", *answers, limit_s=limit_s))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()
