"""What `new` suggests is what a module that keeps the contract does: the files are run."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from real_runs import RealRuns

from harness import cli
from harness.contracts import Verdict
from harness.scenario import Scenario
from harness.scenario_file import load_file

# fmt: off
CASES = [
    # kind, fault point, transport, nth, who, outcome that the contract asks for, other flags
    ("reject", "engine.finish", "nccl", "1", "1", "resumed", ["--push", "3"]),
    ("reject", "engine.update", "ipc", "always", "1", "raised", []),
    ("reject", "engine.start", "nccl", "always", "all", "raised", ["--pushes", "2"]),
    ("reject", "engine.update", "nccl", "1", "0", "resumed", []),
    ("disconnect", "engine.start", "ipc", "1", "1", "resumed", []),
    ("reply_lost", "engine.finish", "ipc", "1", "0", "resumed", []),
    ("raise", "worker.receive", "ipc", "1", "0", "resumed", []),
    ("raise", "worker.finish", "nccl", "always", "0", "raised", ["--push", "2"]),
    ("reject", "engine.pause", "ipc", "1", "1", "raised", []),
    ("reject", "engine.publish", "ipc", "1", "1", "resumed", []),
    ("stale_version", "engine.publish", "ipc", "always", "1", "raised", ["--pushes", "2"]),
    ("reject", "engine.resume", "ipc", "1", "1", "resumed", []),
    ("reply_lost", "engine.resume", "ipc", "1", "1", "resumed", []),
    ("reject", "engine.resume", "ipc", "always", "1", "raised", ["--pushes", "2"]),
    ("reject", "engine.init", "nccl", "1", "0", "resumed", []),
    ("reject", "engine.init", "ipc", "always", "0", "raised", []),
    ("port_taken", "rank.bind", "nccl", "1", "0", "resumed", []),
    ("slow", "worker.receive", "nccl", "1", "0", "resumed", ["--with", "seconds: 0.1"]),
    ("kill", "engine.finish", "ipc", "1", "1", "raised", []),
    ("kill", "rank.gather", "ipc", "3", "1", "raised", []),
    ("raise", "rank.gather", "ipc", "3", "1", "raised", []),
    ("reject", "engine.version", "ipc", "1", "0", "raised", []),
]
# fmt: on


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_suggestions_hold(
    real_runs: RealRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is written without a question about its end, and passes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    scenarios: list[Scenario] = []
    for number, (kind, at, transport, nth, who, outcome, more) in enumerate(CASES):
        name = f"{number}_{kind}_{at}"
        whose = "--rank" if at.startswith("rank.") else "--engine"
        flags = ["--what", kind, "--where", at, "--nth", nth, whose, who, "--outcome", outcome]
        assert cli.main(["new", name, *flags, "--transport", transport, *more]) == 0
        scenarios += load_file(Path(f"{name}.yaml")).scenarios
    results = real_runs.run(scenarios, tmp_path / "out")
    assert len(results) == len(CASES)
    wrong = {n: r.sentence for n, r in results.items() if r.verdict is not Verdict.PASS}
    assert wrong == {}
