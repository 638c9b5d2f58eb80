"""`new`: what each set of flags writes, what is asked again, and that every file is a scenario."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from rich.console import Console

from harness import cli
from harness.authoring import arguments, new
from harness.authoring.advice import advise
from harness.authoring.new_file import file_text
from harness.authoring.question import Answers
from harness.authoring.questions import OUTCOMES, QUESTIONS, struck
from harness.fault_points import FAULT_POINTS
from harness.faults import FAULTS
from harness.scenario import Scenario
from harness.scenario_file import load_file

FINISH = ["--what", "reject", "--where", "engine.finish", "--transport", "nccl"]
REQUIRED = {"slow": "seconds: 0.2", "lie": "body: {weight_version: other}"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a user's empty folder, with nobody at the terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())


def _written(path: str = "mine.yaml") -> Scenario:
    file = load_file(Path(path))
    assert file.errors == ()
    return file.scenarios[0]


def test_third_push(capsys: pytest.CaptureFixture[str]) -> None:
    """A fault in the third push makes three pushes, with an expectation each."""
    flags = [*FINISH, "--engine", "1", "--push", "3", "--outcome", "resumed"]
    assert cli.main(["new", "mine", *flags]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "wrote mine.yaml"
    scenario = _written()
    assert scenario.num_pushes == 3
    assert [scenario.expectation(push).version for push in (1, 2, 3)] == ["1", "2", "3"]
    assert [scenario.expectation(push).attempts for push in (1, 2, 3)] == [1, 1, 2]
    assert scenario.engines.count == 2
    assert (scenario.faults[0].push, scenario.faults[0].index) == (3, 1)


def test_later_pushes() -> None:
    """After a push that raised, the next one publishes the version that it would have had."""
    flags = [*FINISH, "--engine", "0", "--nth", "always", "--outcome", "raised", "--pushes", "3"]
    assert cli.main(["new", "mine", *flags]) == 0
    scenario = _written()
    assert [scenario.expectation(push).version for push in (1, 2, 3)] == ["default", "1", "2"]
    assert scenario.expectation(1).names_engine == 0
    assert set(scenario.waive) == {"no_open_session"}


def test_own_answers_win() -> None:
    """What the user says of the end is written, whatever the contract would say."""
    flags = [*FINISH, "--engine", "0", "--outcome", "raised", "--attempts", "1"]
    assert cli.main(["new", "mine", *flags, "--version", "7", "--generation", "any"]) == 0
    expected = _written().expectation(1)
    assert (expected.outcome, expected.attempts, expected.version) == ("raised", 1, "7")
    assert (expected.generation, expected.bytes) == (None, None)


# fmt: off
PLACES = [
    # id, name and flags, folders that are there, the file
    ("here", ["a"], [], "a.yaml"),
    ("in-scenarios", ["theme/a"], ["scenarios"], "scenarios/theme/a.yaml"),
    ("scenarios-said-twice", ["scenarios/a"], ["scenarios"], "scenarios/a.yaml"),
    ("makes-scenarios", ["scenarios/a"], [], "scenarios/a.yaml"),
    ("a-path", ["b/a.yaml"], ["scenarios"], "b/a.yaml"),
    ("into", ["a", "--into", "c"], ["scenarios"], "c/a.yaml"),
]
# fmt: on


@pytest.mark.parametrize(
    ("name", "folders", "path"), [case[1:] for case in PLACES], ids=[case[0] for case in PLACES]
)
def test_places(name: list[str], folders: list[str], path: str) -> None:
    """A name is below the scenarios' folder, a path is a path."""
    for each in folders:
        Path(each).mkdir()
    assert cli.main(["new", *name, *FINISH, "--engine", "0", "--outcome", "resumed"]) == 0
    _written(path)


# fmt: off
MISTAKES = [
    # id, arguments after new, the lines that are printed
    ("nothing-said", ["a"],
     ["expected answers by flags, since there is no terminal to ask at; found none by --what, "
      "--where, --transport, --outcome. Add them: `resync-chaos new --help` says what they take."]),
    ("no-engine", ["a", *FINISH, "--outcome", "resumed"],
     ["expected answers by flags, since there is no terminal to ask at; found none by --engine. "
      "Add them: `resync-chaos new --help` says what they take."]),
    ("options-needed", ["a", "--what", "slow", "--where", "rank.gather", "--rank", "1",
                        "--transport", "ipc", "--outcome", "resumed"],
     ["expected answers by flags, since there is no terminal to ask at; found none by --with. "
      "Add them: `resync-chaos new --help` says what they take."]),
    ("kind", ["a", "--what", "rejct"],
     [f'--what: expected one of {", ".join(FAULTS)}, found "rejct". Did you mean reject?']),
    ("impossible-pair", ["a", "--what", "port_taken", "--where", "rank.gather"],
     ["--where: expected a point that port_taken can strike (rank.bind), found rank.gather. Use "
      "one of those."]),
    ("several", ["a", *FINISH, "--engine", "64", "--nth", "0", "--outcome", "resume"],
     ['--engine: expected a number from 0 to 63, or all, found "64". Write one of those.',
      '--nth: expected a count from 1, counts with commas, or always, found "0". 1 is the first '
      "time.",
      f'--outcome: expected one of {", ".join(OUTCOMES)}, found "resume". Did you mean resumed?']),
    ("superfluous", ["a", *FINISH, "--engine", "0", "--rank", "1", "--outcome", "resumed"],
     ["--rank: expected no answer beside --what reject --where engine.finish, found one. Remove "
      "it."]),
    ("options", ["a", *FINISH, "--engine", "0", "--outcome", "resumed", "--with", "status: 200"],
     ["--with: expected options of reject (status, text), found {\"status\": 200}. status: Input "
      "should be greater than or equal to 400."]),
    ("no-options", ["a", "--what", "hang", "--where", "engine.finish", "--transport", "ipc",
                    "--engine", "0", "--outcome", "resumed", "--with", "seconds: 2"],
     ["--with: expected no answer beside --what hang --where engine.finish, found one. Remove "
      "it."]),
    ("name", ["../a", *FINISH],
     ["NAME: expected letters, digits and _ . + -, with / between folders, found '../a'. Write for "
      "example session/finish_refused."]),
    ("too-few-engines", ["a", *FINISH, "--engine", "3", "--num-engines", "2",
                         "--outcome", "resumed"],
     ["a.yaml: expected answers that fit together, found:",
      "  faults.0.engine: expected an engine from 0 to 1 (engines.count is 2), found 3. Lower it, "
      "or raise engines.count.",
      "Nothing was written."]),
    ("source", ["a", *FINISH, "--engine", "0", "--outcome", "resumed", "--source", "slack"],
     ['--source: expected the address of a public report, found "slack". Start it with '
      "https://."]),
]
# fmt: on


@pytest.mark.parametrize(
    ("arguments", "lines"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES]
)
def test_mistakes(
    arguments: list[str], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake exits 2, says what is possible, and writes nothing."""
    assert cli.main(["new", *arguments]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.splitlines()) == ("", lines)
    assert list(Path().rglob("*.yaml")) == []


def test_leads_editors_to_the_schema() -> None:
    """Where a schema lies above the file, its first line says so, relative to it."""
    Path("schemas").mkdir()
    Path("schemas/scenario.schema.json").write_text("{}")
    flags = [*FINISH, "--engine", "0", "--outcome", "resumed"]
    assert cli.main(["new", "scenarios/theme/mine", *flags]) == 0
    first = Path("scenarios/theme/mine.yaml").read_text().partition("\n")[0]
    assert first == "# yaml-language-server: $schema=../../schemas/scenario.schema.json"
    _written("scenarios/theme/mine.yaml")


def test_keeps_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is there is not written over."""
    Path("mine.yaml").write_text("kept")
    assert cli.main(["new", "mine", *FINISH, "--engine", "0", "--outcome", "resumed"]) == 2
    assert Path("mine.yaml").read_text() == "kept"
    assert capsys.readouterr().err == (
        "mine.yaml: expected no file there, found one. Choose another name, or remove it first.\n"
    )


def _asked(*answers: str, flags: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run the dialogue on these lines; return the exit code and what was shown."""
    shown = io.StringIO()
    console = Console(file=shown, width=200, highlight=False)
    options = _options("mine", *flags)
    code = new.new(options, console=console, stream=io.StringIO("\n".join(answers) + "\n"))
    return code, shown.getvalue()


def _options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    arguments._add_new(parser.add_subparsers())
    return parser.parse_args(["new", *words])


def test_asks_again() -> None:
    """An impossible answer is told with what is possible, and asked for again."""
    code, shown = _asked(
        "11", "engine.finsh", "engine.finish", "99", "1", *[""] * 2, "nccl", *[""] * 9
    )
    assert code == 0
    assert "What went wrong? > " in shown
    assert 'found "engine.finsh". Did you mean engine.finish?' in shown
    assert 'expected a number from 0 to 63, or all, found "99". Write one of those.' in shown
    assert shown.count("Which engine?") == 2
    scenario = _written()
    assert (scenario.faults[0].kind, scenario.faults[0].at) == ("reject", "engine.finish")
    assert scenario.expectation(1).attempts == 2


def test_asks_only_what_no_flag_says() -> None:
    """A flag is not asked for again."""
    _, shown = _asked("all", *[""] * 9, flags=(*FINISH, "--outcome", "raised", "--nth", "always"))
    assert "What went wrong?" not in shown
    assert "How often" not in shown
    assert _written().faults[0].index == "all"


def test_answers_that_end() -> None:
    """Answers that end too early write nothing."""
    code, shown = _asked("reject")
    assert code == 130
    assert shown.endswith("nothing was written\n")
    assert not Path("mine.yaml").exists()


def _every_answer() -> Iterator[Answers]:
    """Yield answers for each kind at each point that it can strike, once and always."""
    for kind in FAULTS:
        for number, at in enumerate(p for p in FAULT_POINTS if FAULTS[kind].can_strike(p)):
            for nth in ("1", "always"):
                given = {"what": kind, "where": at, "nth": nth, "push": "2"}
                if FAULT_POINTS[at].transport is None:
                    given["transport"] = ("ipc", "nccl")[number % 2]
                if kind in REQUIRED:
                    given["with"] = REQUIRED[kind]
                yield given


@pytest.mark.parametrize("outcome", ["likely", *OUTCOMES])
def test_every_file_is_a_scenario(outcome: str) -> None:
    """Whatever is answered, the file passes the check, and says what was answered."""
    step = 1 if outcome == "likely" else 5  # what the contract asks for has the most to say
    count = 0
    for given in islice(_every_answer(), 0, None, step):
        answers: Answers = {}
        for question in QUESTIONS:
            if not question.applies(answers) or (
                question.only_by_flag(answers) and question.key not in given
            ):
                continue
            typed = given.get(question.key)
            if question.key == "outcome":
                advised = advise(struck(answers)).expect["outcome"]
                typed = str(advised) if outcome == "likely" else outcome
            typed = question.default(answers) if typed is None else typed
            assert typed is not None, question.key
            answers[question.key] = question.answer(typed, answers)
        Path("mine.yaml").write_text(file_text(answers), encoding="utf-8")
        file = load_file(Path("mine.yaml"))
        assert [str(error) for error in file.errors] == [], given
        assert file.scenarios[0].expectation(2).outcome == answers["outcome"]
        assert file.scenarios[0].proves == answers["proves"]
        count += 1
    assert count > 400 / step
