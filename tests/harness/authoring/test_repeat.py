"""`run --repeat N`: k of n, and a flaky scenario is not green."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import cli
from harness.authoring.repeat import Rounds
from harness.contracts import ScenarioResult, Verdict

FILE = """\
proves: It holds.
transport: ipc
trainer: {ranks: 2}
tolerates: nothing is done
expect: {outcome: resumed}
"""
# A target that is wrong about its version after the third push that it counts: the second round's,
# since each round has the scenario's push and one more to see that all is clean.
FLAKY = """
from pathlib import Path

from harness.targets.resync_target import ResyncTarget, build as build_good


class Flaky(ResyncTarget):
    def push(self):
        if self._context.rank == 0:
            runs = Path("runs")
            count = len(runs.read_text()) if runs.exists() else 0
            runs.write_text("x" * (count + 1))
        return super().push()

    def version(self):
        counted = len(Path("runs").read_text()) if Path("runs").exists() else 0
        return "wrong" if counted == 3 else super().version()


def build(context):
    good = build_good(context)
    return Flaky(good._context, good._updater)
"""


def _result(name: str, verdict: Verdict) -> ScenarioResult:
    return ScenarioResult(
        name=name, path="a.yaml", proves="It holds.", verdict=verdict, sentence=verdict.value,
        outcomes=(), attempts=(), engines=(), checks=(), seconds=0.1, total_seconds=0.1,
        journal=Path("journal.jsonl"),
    )  # fmt: skip


def _rounds(*verdicts: str, times: int | None = None) -> Rounds:
    """Return rounds that ended: a word of letters, one a scenario (a, b, ...)."""
    letters = {each.value[0]: each for each in Verdict}
    rounds = Rounds(times or len(verdicts), Path("out"))
    for word in verdicts:
        ended = {n: _result(n, letters[letter]) for n, letter in zip("abc", word, strict=False)}
        rounds._begun.append(ended)
    return rounds


def test_worst() -> None:
    """The worst of each scenario counts, wherever it stood."""
    worst = _rounds("ppp", "phf", "ppi").worst()
    assert {name: result.verdict.value for name, result in worst.items()} == {
        "a": "pass",
        "b": "hang",
        "c": "invalid",
    }


def test_lines() -> None:
    """Those that always passed come first; of the others it is said how they ended."""
    assert list(_rounds("fpp", "fph", "fpi").lines("abc")) == [
        "3 of 3 pass  b",
        "0 of 3 pass  a  (3 fail)",
        "1 of 3 pass  c  (1 hang, 1 invalid)",
    ]


def test_lines_of_an_interrupted_run() -> None:
    """Rounds that did not come to a scenario do not count for it."""
    assert list(_rounds("pp", "p", times=5).lines("ab")) == ["2 of 2 pass  a", "1 of 1 pass  b"]


def test_one_round_says_nothing() -> None:
    """Without --repeat there is no k of n."""
    assert list(_rounds("p").lines("a")) == []


def test_at_least_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """None is a mistake."""
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(FILE)
    assert cli.main(["run", "a.yaml", "--repeat", "0"]) == 2
    assert capsys.readouterr().err == "--repeat: expected at least 1, found 0.\n"


@pytest.mark.processes
def test_flaky(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A target that fails once in three rounds makes the run fail, and says how often."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("a.yaml").write_text(FILE)
    Path("flaky_target.py").write_text(FLAKY)
    words = ["run", "a.yaml", "--repeat", "3", "--target", "flaky_target:build", "--plain"]
    assert cli.main(words) == Verdict.FAIL.exit_code
    shown = capsys.readouterr().out
    assert "2 of 3 pass  a  (1 fail)\n" in shown
    verdicts = json.loads(Path("out/verdicts.json").read_text())
    assert [each["verdict"] for each in verdicts["scenarios"]] == ["fail"]
    assert Path(verdicts["scenarios"][0]["journal"]).exists()
