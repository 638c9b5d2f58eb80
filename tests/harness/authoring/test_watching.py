"""`run --watch`: a save runs again, a mistake is told and waited out, Ctrl-C ends it all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from at_a_terminal import Session

from harness.authoring import watching
from harness.authoring.watching import stamps, watch
from harness.errors import UsageError

FILE = """\
proves: It holds.
transport: ipc
tolerates: nothing is done
expect: {outcome: resumed}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's folder."""
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("one")


def _waits(*acts: Callable[[], object]) -> Callable[[float], None]:
    """Return a wait in which somebody does one thing after the other, and then presses Ctrl-C."""
    todo: Iterator[Callable[[], object]] = iter(acts)

    def wait(seconds: float) -> None:
        assert seconds > 0
        act = next(todo, None)
        if act is None:
            raise KeyboardInterrupt
        act()

    return wait


def _nothing() -> None:
    pass


def test_runs_after_each_save(capsys: pytest.CaptureFixture[str]) -> None:
    """Only a change runs again, and Ctrl-C ends the watch."""
    runs: list[str] = []

    def run(kept: watching.Kept) -> int:
        runs.append(Path("a.yaml").read_text())
        return 0

    saves = [_nothing, lambda: Path("a.yaml").write_text("two!"), _nothing, _nothing]
    code = watch([Path("a.yaml")], run, target="m:f", wait=_waits(*saves))
    assert (code, runs) == (130, ["one", "two!"])
    assert capsys.readouterr().out.count("watching: ") == 2


def test_a_save_during_the_run() -> None:
    """What was saved while it ran is not missed."""
    runs: list[str] = []

    def run(kept: watching.Kept) -> int:
        runs.append(Path("a.yaml").read_text())
        if len(runs) == 1:
            Path("a.yaml").write_text("later on")
        return 0

    watch([Path("a.yaml")], run, target="m:f", wait=_waits())
    assert runs == ["one", "later on"]


def test_mistakes_are_waited_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A broken file is told, and the next save is tried."""
    runs = 0

    def run(kept: watching.Kept) -> int:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise UsageError("a.yaml:1:1: expected a mapping, found one.")
        return 0

    watch([Path("a.yaml")], run, target="m:f", wait=_waits(Path("a.yaml").unlink))
    assert runs == 2
    assert capsys.readouterr().err == "a.yaml:1:1: expected a mapping, found one.\n"


def test_an_interrupted_run_ends_it() -> None:
    """Ctrl-C in a run ends the watch too."""
    assert watch([Path("a.yaml")], lambda kept: 130, target="m:f", wait=_waits()) == 130


def test_what_is_watched() -> None:
    """Scenario files, their folder's defaults, and the target where it lies here."""
    Path("folder").mkdir()
    for name in ("folder/b.yaml", "folder/defaults.yaml", "defaults.yaml", "mine.py", "other.py"):
        Path(name).write_text("x")
    assert sorted(map(str, stamps([Path("a.yaml")], "mine:f"))) == [
        "a.yaml",
        "defaults.yaml",
        "mine.py",
    ]
    assert sorted(map(str, stamps([Path("folder")], "away.there:f"))) == [
        "folder/b.yaml",
        "folder/defaults.yaml",
    ]


@pytest.mark.processes
def test_for_real(tmp_path: Path) -> None:
    """At a terminal: it runs, a save runs it again with the same launcher, Ctrl-C ends it."""
    Path("a.yaml").write_text(FILE)
    session = Session(["run", "a.yaml", "--watch", "--plain"], tmp_path)
    try:
        session.see("1 pass, 0 fail, 0 hang, 0 invalid")
        session.see("watching: save a file to run again")
        Path("a.yaml").write_text(FILE.replace("resumed", "raised"))
        session.see("0 pass, 1 fail, 0 hang, 0 invalid")
        session.see("watching: save a file to run again", times=2)
        session.interrupt()
        assert session.end() == 130
    finally:
        session.close()
    assert "Traceback" not in session.shown
