"""``reproduce.sh``: runs the one command of a scenario."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from sample_results import make_result
from sample_runs import make_run

from harness.reporting.run_folder import RunInfo
from reports import reproduce
from reports.stories import Stories

NAMES = ["session/a", "session/a[x-1]", "it's $(touch pwned) `x`", "session/*"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    stub = tmp_path / "stub"
    stub.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    stub.chmod(0o755)
    results = [make_result(name, path=f"{name}.yaml") for name in NAMES]
    run = make_run(results, info=RunInfo(rerun_options=("--target", "a b:c")))
    return reproduce.write(run, Stories(), tmp_path)


def told(script: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [script, *arguments],
        cwd=script.parent,
        env={"RESYNC_CHAOS": "./stub", "PATH": "/bin:/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_runs_one(script: Path, name: str) -> None:
    """The words reach the command as they are, with what the run was given and what is added."""
    words = ["run", f"{name}.yaml", "-k", name, "--target", "a b:c", "--plain"]
    assert told(script, name, "--plain") == (0, "".join(f"<{word}>" for word in words))
    assert not (script.parent / "pwned").exists()


def test_lists(script: Path) -> None:
    """Without a name it lists every scenario with its verdict."""
    code, text = told(script)
    assert code == 0
    assert text.splitlines() == [f"pass       {name}" for name in sorted(NAMES)]


def test_unknown(script: Path) -> None:
    """A scenario that is not of this run is a mistake, said."""
    assert told(script, "x") == (2, "expected a scenario of this run, found x\n")
