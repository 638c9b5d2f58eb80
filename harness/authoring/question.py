"""One question of ``resync-chaos new``: its flag, its checks, and what an answer depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.wording import show, unknown

Answers = dict[str, Any]


class Refused(ValueError):
    """An answer that is not possible: what was expected, what was found, the next step."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question.

    Attributes:
        key: of the answer; the flag is ``--key`` with dashes.
        asks: the question, short.
        check: turns what was typed into the answer.
        default: likely answer, as it would be typed; ``None`` where there is none.
        needed: whether no default may stand in for it where nobody can be asked.
        applies: whether the answers before it make it a question at all.
        choices: what may be typed, each with its meaning; a number picks one.
        help: of the flag.
        metavar: of the flag.
        only_by_flag: never asked.
    """

    key: str
    asks: str
    check: Callable[[str, Answers], Any]
    default: Callable[[Answers], str | None] = lambda answers: None
    needed: Callable[[Answers], bool] = lambda answers: False
    applies: Callable[[Answers], bool] = lambda answers: True
    choices: Callable[[Answers], Mapping[str, str]] = lambda answers: {}
    help: str
    metavar: str
    only_by_flag: Callable[[Answers], bool] = lambda answers: False

    @property
    def flag(self) -> str:
        """The flag that answers it."""
        return f"--{self.key.replace('_', '-')}"

    def answer(self, typed: str, answers: Answers) -> Any:
        """Return the answer that was typed.

        Raises:
            Refused: it is not possible.
        """
        choices = list(self.choices(answers))
        if choices and typed.isdigit() and 1 <= int(typed) <= len(choices):
            typed = choices[int(typed) - 1]
        return self.check(typed.strip(), answers)


def one_of(known: Callable[[Answers], Iterable[str]]) -> Callable[[str, Answers], str]:
    """Return a check that takes one of the words that are known then."""

    def check(typed: str, answers: Answers) -> str:
        names = list(known(answers))
        if typed not in names:
            raise Refused(unknown(typed, names))
        return typed

    return check


def whole(typed: str, *, least: int, most: int, words: tuple[str, ...] = ()) -> Any:
    """Return a number within the limits, or one of the words.

    Raises:
        Refused: it is neither.
    """
    if typed in words:
        return typed
    if not typed.isdigit() or not least <= int(typed) <= most:
        expected = ", or ".join((f"a number from {least} to {most}", *words))
        raise Refused(f"expected {expected}, found {show(typed)}. Write one of those.")
    return int(typed)


def number(least: int, most: int, *words: str) -> Callable[[str, Answers], Any]:
    """Return a check that takes a number within the limits, or one of the words."""
    return lambda typed, answers: whole(typed, least=least, most=most, words=words)


def nth(typed: str, answers: Answers) -> Any:
    """Take which visits are struck: a count, several with commas, or ``always``."""
    counts = [part.strip() for part in typed.split(",")]
    if typed == "always":
        return typed
    if not all(count.isdigit() and int(count) for count in counts):
        raise Refused(
            f"expected a count from 1, counts with commas, or always, found {show(typed)}. "
            "1 is the first time."
        )
    return tuple(int(count) for count in counts)


def version(typed: str, answers: Answers) -> str:
    """Take a label, with or without the quotes that a file needs."""
    return typed.strip("\"'")


def text(typed: str, answers: Answers) -> str:
    """Take any text, on one line."""
    return " ".join(typed.split())


def source(typed: str, answers: Answers) -> str:
    """Take an address, or nothing."""
    if typed and not (typed.startswith(("https://", "http://")) and " " not in typed):
        raise Refused(
            f"expected the address of a public report, found {show(typed)}. Start it with https://."
        )
    return typed
