"""`list`: a line or a row per scenario, with how it ended last."""

from __future__ import annotations

import io
import json
from argparse import Namespace
from pathlib import Path

import pytest
from rich.console import Console

from harness import cli
from harness.authoring.listing import list_scenarios
from harness.scenario_file import load_file

FILES = {
    "scenarios/session/a.yaml": "proves: It holds.\ntransport: ipc\n"
    "faults:\n  - {kind: reject, at: engine.start, engine: 0}\n"
    "expect: {outcome: resumed, attempts: 2}\n",
    "scenarios/session/calm.yaml": "proves: It holds.\ntransport: ipc\n"
    "tolerates: nothing is done\nexpect: {outcome: resumed}\n",
}
LAST = {"scenarios": [{"name": "session/a", "verdict": "hang", "seconds": 1.25}]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's folder, in which one of two scenarios has run."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    Path("out").mkdir()
    Path("out/verdicts.json").write_text(json.dumps(LAST))


def test_plain(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal it is a line each: name, verdict, seconds, what is done."""
    assert cli.main(["list", "scenarios"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "session/a     hang       1.25 s  engine 0 answers 500 at engine.start, push 1",
        "session/calm  -               -  nothing is done to it",
    ]


def test_chosen_and_never_run(capsys: pytest.CaptureFixture[str]) -> None:
    """-k chooses; another folder has other verdicts, or none."""
    assert cli.main(["list", "scenarios", "-k", "session/a", "--out", "elsewhere"]) == 0
    assert capsys.readouterr().out == (
        "session/a  -               -  engine 0 answers 500 at engine.start, push 1\n"
    )


def test_table() -> None:
    """At a terminal scenarios stand under their theme."""
    shown = io.StringIO()
    console = Console(file=shown, width=100, force_terminal=True, color_system=None)
    scenarios = [s for path in FILES for s in load_file(Path(path)).scenarios]
    options = Namespace(out=Path("out"), plain=False)
    assert list_scenarios(scenarios, options, console=console) == 0
    lines = [" ".join(line.split()) for line in shown.getvalue().splitlines()]
    assert lines == [
        "session",
        "a hang 1.25 s engine 0 answers 500 at engine.start, push 1",
        "calm - nothing is done to it",
        "",
        "2 scenarios, 1 of them in the last run of out",
    ]


@pytest.mark.parametrize("text", ["{", "[]", '{"scenarios": [{}]}', '{"scenarios": 3}'])
def test_broken_verdicts(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is no run's verdicts is said to be, without a traceback."""
    Path("out/verdicts.json").write_text(text)
    assert cli.main(["list", "scenarios"]) == 2
    assert capsys.readouterr().err.startswith(
        "out/verdicts.json: expected the verdicts of a run, found "
    )
