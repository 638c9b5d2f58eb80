"""What is raised when two engines behave differently: both answers, and the sequence as a check."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent

from conformance.differential.calls import Call
from conformance.differential.sides import Answer
from conformance.differential.source import Code, check


@dataclass(frozen=True)
class Played:
    """One call of a sequence, and its answers: the reference's, and the other's."""

    call: Call
    answers: tuple[Answer, Answer]

    def code(self, *, differs: bool) -> Code:
        """Return the source that requires the reference's answer, or what both have in common."""
        wanted, other = self.answers
        says = wanted.says if differs else _common_start(wanted.says, other.says)
        return self.call.code(wanted.status, says)


def _common_start(first: str, second: str) -> str:
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return "".join(character for character, _ in same)


class Difference(AssertionError):
    """Two engines differ at the last step of a sequence.

    Attributes:
        what: what differs, in a few words.
        found: side -> what it showed; the reference first.
        source: a check, as source, that the reference passes and the other fails.
        calls: the sequence; the last call is the one after which they differ.
        failing: what the maker of both was to let fail.
    """

    def __init__(
        self,
        what: str,
        found: Sequence[tuple[str, str]],
        source: str,
        *,
        calls: Sequence[Call],
        failing: Mapping[str, int],
    ) -> None:
        self.what, self.found, self.source = what, tuple(found), source
        self.calls, self.failing = tuple(calls), dict(failing)
        super().__init__(self.report())

    def report(self, *notes: str) -> str:
        """Return the whole text; ``notes`` come between the answers and the check."""
        width = max(len(name) for name, _ in self.found)
        shown = "\n".join(f"    {name:>{width}}: {text}" for name, text in self.found)
        lines = [f"{self.what} differs after {len(self.calls)} calls:", shown, *notes]
        lines += ["As a check, for a module of conformance/engine:", indent(self.source, " " * 4)]
        return "\n".join(lines)


def source_of(
    played: Sequence[Played], last: Sequence[Code], *, names: tuple[str, str], arguments: str
) -> str:
    """Return the check that the reference passes and the other engine fails.

    Args:
        played: the calls before the difference, on which both agree.
        last: source that requires what the reference showed in the end.
        names: of the two.
        arguments: of the maker, as source.
    """
    reference, other = names
    return check(
        [*(each.code(differs=False) for each in played), *last],
        name="behaves_like_the_reference",
        docstring=f"What {reference} does, and {other} did not.",
        arguments=arguments,
    )
