"""``resync-chaos new NAME``: writes a scenario from answers, given as flags or asked for."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.prompt import InvalidResponse, PromptBase
from rich.text import Text, TextType

from harness.authoring.new_file import file_text
from harness.authoring.question import Answers, Question, Refused
from harness.authoring.questions import QUESTIONS
from harness.errors import UsageError
from harness.language_commands import MARK
from harness.scenario_file import SCENARIOS_ROOT, load_file

SCHEMA = Path("schemas/scenario.schema.json")
NAME = re.compile(r"[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+)*")
EXIT_INTERRUPTED = 130
SHORT = 30  # characters of a likely answer that stands in the question itself


def new(
    options: argparse.Namespace, *, console: Console | None = None, stream: TextIO | None = None
) -> int:
    """Write the file and say what to do next.

    Args:
        options: ``name``, ``into``, and for each question ``answer_KEY``.
        console: where questions are asked; by default stdout.
        stream: where answers are read; by default stdin, which must be a terminal to be asked.

    Raises:
        UsageError: a flag is not possible or missing and nobody can be asked, or the file is there.
    """
    console = console or Console(highlight=False)
    path = _path(options.name, options.into)
    given = {
        question.key: getattr(options, f"answer_{question.key}")
        for question in QUESTIONS
        if getattr(options, f"answer_{question.key}") is not None
    }
    try:
        answers = _answers(given, console, stream)
    except (KeyboardInterrupt, EOFError):
        console.print()
        console.print("nothing was written")
        return EXIT_INTERRUPTED
    text = f"{_mark(path)}{file_text(answers)}"
    _check(text, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"{path}: expected a place that can be written to, found {error.strerror}. "
            "Choose another name, or another folder with --into."
        ) from error
    for line in (f"wrote {path}", f"next: resync-chaos explain {path}",
                 f"      resync-chaos run {path}"):  # fmt: skip
        console.print(Text(line), soft_wrap=True)
    return 0


def _path(name: str, into: Path | None) -> Path:
    """Return where the file goes.

    Raises:
        UsageError: it is no name, or the file is there.
    """
    if name.endswith(".yaml") and into is None:
        path = Path(name)
    else:
        name = name.removesuffix(".yaml")
        if not NAME.fullmatch(name) or any(part.strip(".") == "" for part in name.split("/")):
            raise UsageError(
                f"NAME: expected letters, digits and _ . + -, with / between folders, found "
                f"{name!r}. Write for example session/finish_refused."
            )
        default = Path(SCENARIOS_ROOT) if Path(SCENARIOS_ROOT).is_dir() else Path()
        if into is None:
            name = name.removeprefix(f"{SCENARIOS_ROOT}/") if default.name else name
        path = (into or default) / f"{name}.yaml"
    if path.exists():
        raise UsageError(
            f"{path}: expected no file there, found one. Choose another name, or remove it first."
        )
    return path


def _answers(given: dict[str, str], console: Console, stream: TextIO | None) -> Answers:
    """Return an answer to every question that applies: given, asked for, or the likely one.

    Raises:
        UsageError: flags are not possible, superfluous or missing; all of them at once.
    """
    answers, problems, missing = _from_flags(given)
    if problems:
        raise UsageError("\n".join(problems))
    if not missing:
        return answers
    if stream is None and not sys.stdin.isatty():
        flags = ", ".join(question.flag for question in missing)
        raise UsageError(
            f"expected answers by flags, since there is no terminal to ask at; found none by "
            f"{flags}. Add them: `resync-chaos new --help` says what they take."
        )
    return _ask_all(given, console, stream)


def _from_flags(given: dict[str, str]) -> tuple[Answers, list[str], list[Question]]:
    """Return the answers, what is wrong with the flags, and what is needed and not given.

    After a missing or a wrong answer, what depends on it is not judged.
    """
    answers: Answers = {}
    problems: list[str] = []
    missing: list[Question] = []
    for question in QUESTIONS:
        typed = given.get(question.key)
        try:
            if not question.applies(answers):
                if typed is not None:
                    problems.append(_superfluous(question, answers))
                continue
            if typed is not None:
                answers[question.key] = question.answer(typed, answers)
            elif question.needed(answers):
                missing.append(question)
            elif not (missing or problems or question.only_by_flag(answers)):
                answers[question.key] = question.answer(_likely(question, answers), answers)
        except Refused as error:
            problems.append(f"{question.flag}: {error}")
        except KeyError:
            continue  # it depends on an answer that is missing or wrong
    return answers, problems, missing


def _likely(question: Question, answers: Answers) -> str:
    likely = question.default(answers)
    assert likely is not None, f"{question.key} is needed, or has a likely answer"
    return likely


def _superfluous(question: Question, answers: Answers) -> str:
    return (
        f"{question.flag}: expected no answer beside --what {answers['what']} --where "
        f"{answers['where']}, found one. Remove it."
    )


class _Prompt(PromptBase[Any]):
    """One question on a terminal; an answer that is not possible is asked for again."""

    prompt_suffix = " > "

    def __init__(self, question: Question, answers: Answers, console: Console) -> None:
        super().__init__(Text(question.asks, "bold"), console=console, show_choices=False)
        self._question = question
        self._answers = answers

    @classmethod
    def get_input(
        cls, console: Console, prompt: TextType, password: bool, stream: TextIO | None = None
    ) -> str:
        """Read one line.

        Raises:
            EOFError: there is none.
        """
        if stream is None:
            return super().get_input(console, prompt, password)
        console.print(prompt, end="")
        line = stream.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")

    def render_default(self, default: Any) -> Text:
        return Text(f"({default})" if len(default) <= SHORT else "(Enter: that)", "prompt.default")

    def process_response(self, value: str) -> Any:
        try:
            return self._question.answer(value.strip(), self._answers)
        except Refused as error:
            raise InvalidResponse(Text(f"  {error}", "red")) from error


def _ask_all(given: dict[str, str], console: Console, stream: TextIO | None) -> Answers:
    answers: Answers = {}
    for question in QUESTIONS:
        if not question.applies(answers):
            continue
        if question.key in given:
            answers[question.key] = question.answer(given[question.key], answers)
        elif not question.only_by_flag(answers):
            answers[question.key] = _ask(question, answers, console, stream)
    return answers


def _ask(question: Question, answers: Answers, console: Console, stream: TextIO | None) -> Any:
    for line in _choices(question, answers):
        line.truncate(console.width, overflow="ellipsis")
        console.print(line)
    likely = question.default(answers)
    prompt = _Prompt(question, answers, console)
    if likely is None:
        return prompt(stream=stream)
    if len(likely) > SHORT:
        console.print(Text(f"     {likely}", "dim"))
    prompt.show_default = likely != ""
    found = prompt(default=likely, stream=stream)
    # rich hands the default back as it is.
    return question.answer(likely, answers) if found is likely else found


def _choices(question: Question, answers: Answers) -> Iterator[Text]:
    choices = question.choices(answers)
    width = max((len(name) for name in choices), default=0)
    for number, (name, meaning) in enumerate(choices.items(), start=1):
        yield Text(f"{number:4} ").append(f"{name:<{width}}", "cyan").append(f"  {meaning}", "dim")


def _mark(path: Path) -> str:
    """Return the first line that leads an editor to the schema, where one lies above the file."""
    here = Path.cwd()
    for folder in (here / path).parents:
        if (folder / SCHEMA).is_file():
            to_schema = os.path.relpath(folder / SCHEMA, (here / path).parent)
            return f"{MARK}{Path(to_schema).as_posix()}\n"
        if folder == here:
            break
    return ""


def _check(text: str, path: Path) -> None:
    """Check the text as the file that it will be.

    Raises:
        UsageError: answers that are possible each contradict each other.
    """
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / path.name
        draft.write_text(text, encoding="utf-8")
        errors = load_file(draft).errors
    if errors:
        told = "\n".join(f"  {error.place}: {error.message}" for error in errors)
        raise UsageError(
            f"{path}: expected answers that fit together, found:\n{told}\nNothing was written."
        )
