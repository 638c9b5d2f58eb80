"""``resync-chaos known-bad``: its mistakes, and one module that is caught for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import cli

# fmt: off
MISTAKES = [
    # id, arguments, what is said
    ("no-jobs", ["-j", "0"], "-j: expected at least 1, found 0."),
    ("path", ["scenarios/draft"],
     "PATH: expected none without --full or --needed, as catches.yaml names the scenarios, found "
     "scenarios/draft."),
    ("record", ["--record"], "--record: expected --needed beside it, found none."),
    ("record-some", ["--needed", "--record", "-k", "no_"],
     "--record: expected all modules, found -k, "),
    ("nothing", ["-k", "nosuch"], "expected known-bad modules matching nosuch, found none of "),
    ("no-file", ["--full", "nosuch.yaml"], "nosuch.yaml: "),
    ("controls", ["--full", "scenarios/controls"],
     "expected scenarios without a target of their own, found none."),
]
# fmt: on


@pytest.mark.parametrize(("arguments", "said"), [row[1:] for row in MISTAKES],
                         ids=[row[0] for row in MISTAKES])  # fmt: skip
def test_mistakes(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each ends with exit code 2 and says what to do; nothing runs."""
    monkeypatch.chdir(Path(__file__).parents[3])
    assert cli.main(["known-bad", "--out", str(tmp_path / "out"), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_page(tmp_path: Path) -> None:
    """The docs page is written without running anything."""
    path = tmp_path / "page.md"
    assert cli.main(["known-bad", "--page", str(path)]) == 0
    assert path.read_text(encoding="utf-8").startswith("# Known-bad modules\n")


@pytest.mark.processes
def test_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A scenario is needed for the module that it catches; one that catches none fails the run."""
    scenario = Path(__file__).parents[3] / "scenarios" / "quiesce" / "flush_comes_first.yaml"
    arguments = ["known-bad", "--needed", "--out", str(tmp_path), str(scenario)]
    assert cli.main([*arguments, "-k", "no_flush"]) == 0
    out = capsys.readouterr().out
    assert "needed    quiesce/flush_comes_first: catches no_flush\n  outcome: expected " in out
    assert "1 scenarios, 1 catch a module, 0 kept, 0 unneeded" in out

    assert cli.main([*arguments, "-k", "lists_not_compared"]) == 10
    assert "UNNEEDED  quiesce/flush_comes_first: catches none of 1" in capsys.readouterr().out


@pytest.mark.processes
def test_caught_and_survives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A module is caught by the scenario that is known to; where only another runs, it survives."""
    arguments = ["known-bad", "-k", "no_flush", "--out", str(tmp_path)]
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "  by quiesce/flush_comes_first: fail, right place: " in out
    assert "1 modules, 1 caught, 0 survive" in out

    scenarios = Path(__file__).parents[3] / "scenarios"
    assert cli.main([*arguments, "--full", str(scenarios / "session" / "later_chunk.yaml")]) == 10
    out = capsys.readouterr().out
    assert "SURVIVES  no_flush: " in out
    assert "needed by nobody: 1 of 1 scenarios" in out
