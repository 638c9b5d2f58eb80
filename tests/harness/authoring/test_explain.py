"""`explain`: the story of a file, with every cell, told without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import cli

ROOT = Path(__file__).parents[3]
FILE = """\
proves: A finish that fails is made good.
source: https://example.org/report
trainer: {ranks: 4, tensor_parallel: 2}
engines: {count: 2}
draft: true
matrix:
  faults.0.at: [engine.start, engine.finish]
  transport: [ipc, nccl]
pushes: 2
faults:
  - {kind: reject, engine: 1, push: 2}
restarts: [{what: engine, engine: 0, before_push: 2}]
before_connect: [{request: pause}]
waive: {no_open_session: it is left open}
expect:
  - {outcome: resumed, attempts: 1, version: "1"}
  - {outcome: resumed, attempts: 2, version: "2", generation: running}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's folder with one file of four cells."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(FILE)


def test_story(capsys: pytest.CaptureFixture[str]) -> None:
    """It says who takes part, what is done when, what must follow, and the cells."""
    assert cli.main(["explain", "mine.yaml"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for sentence in (
        "mine[engine.start-ipc] A finish that fails is made good. https://example.org/report",
        "trainer 4 ranks (tensor parallel 2, data parallel 2): rank 0 sends everything to every "
        "engine; the others gather each tensor with it",
        "engines 2 fake, of 1 worker each",
        "a draft model travels in the same push",
        "push 1 Every engine is sent pause before the trainer connects.",
        "push 2 Engine 0 is restarted before push 2. In push 2, the 1st time at engine.start (POST "
        "/start_weight_update or /start_draft_weight_update), engine 1 answers 500.",
        "then Every rank returns, and generation goes on (resumed), after 2 attempts. Every "
        'engine: shows version "2", generation is running.',
        "waived no_open_session (no worker is left inside a weight update): it is left open",
        "control The same run with nothing done to it must succeed, and must not meet",
        "cells 4, of which the first is told above:",
        "engine.finish-nccl: nccl, every engine is sent pause before the trainer connects; engine "
        "1 answers 500 at engine.finish, push 2; engine 0 is restarted before push 2",
        "run it resync-chaos run mine.yaml -k 'mine[engine.start-ipc]'",
    ):
        assert sentence in told


def test_one_cell(capsys: pytest.CaptureFixture[str]) -> None:
    """With -k it is the chosen cell that is told, alone."""
    assert cli.main(["explain", "mine.yaml", "-k", "finish-nccl"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("mine[engine.finish-nccl]\n")
    assert "(POST /finish_weight_update)" in told
    assert "cells" not in told


def test_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    """A file with errors gets those of `check`."""
    Path("bad.yaml").write_text("proves: It holds.\n")
    assert cli.main(["explain", "bad.yaml"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("bad.yaml:1:1: ")


def test_whole_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    """Every scenario that is there can be told, whatever it uses."""
    assert cli.main(["explain", str(ROOT / "scenarios")]) == 0
    told = capsys.readouterr().out
    assert told.count("\n  control   ") == len(list((ROOT / "scenarios").rglob("*.yaml"))) - len(
        list((ROOT / "scenarios").rglob("defaults.yaml"))
    )
    assert max(map(len, told.splitlines())) <= 200


def test_is_light() -> None:
    """The commands that run nothing import neither torch nor the server."""
    heavy = ("torch", "numpy", "fastapi", "uvicorn", "resync", "fakes.engine", "fakes.megatron")
    commands = (
        ["explain", "mine.yaml"],
        ["list", "mine.yaml"],
        ["new", "other", "--what", "reject", "--where", "engine.start", "--engine", "0",
         "--transport", "ipc", "--outcome", "resumed"],
    )  # fmt: skip
    code = (
        f"import sys; from harness.cli import main; [main(words) for words in {commands!r}]; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
