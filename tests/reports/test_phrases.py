"""Results in short phrases, and foreign text made safe."""

from __future__ import annotations

import shlex

import pytest
from sample_results import engine, make_result

from harness.contracts import EngineFinal
from reports import phrases

VISIBLE = [
    # id            text                    shown
    ("plain", "version 1, größer", "version 1, größer"),
    ("empty", "", ""),
    ("lines", "a\n\tb", "a\n\tb"),
    ("ansi", "\x1b[31mred", "\\x1b[31mred"),
    ("nul", "a\x00b", "a\\x00b"),
    ("carriage-return", "50%\r100%", "50%\\x0d100%"),
    ("c1", "\x9b31m", "\\x9b31m"),
    ("surrogate", "\udc9b", "\\udc9b"),
    ("non-character", "\uffff", "\\uffff"),
    ("astral", "\U0001f600", "\U0001f600"),
]


@pytest.mark.parametrize(
    ("text", "shown"), [case[1:] for case in VISIBLE], ids=[case[0] for case in VISIBLE]
)
def test_visible(text: str, shown: str) -> None:
    """What a terminal obeys or XML forbids is spelled out; the rest stays."""
    assert phrases.visible(text) == shown


# fmt: off
NAMES = [
    # name                              folder     without_cell       cell
    ("session/fails[engine.update]",    "session", "session/fails",   "engine.update"),
    ("a/b/fails[x-1.5]",                "a/b",     "a/b/fails",       "x-1.5"),
    ("fails",                           "",        "fails",           ""),
    ("fails[a/b]",                      "",        "fails",           "a/b"),
    ("session/fails[[1, 2]-ipc]",       "session", "session/fails",   "[1, 2]-ipc"),
]
# fmt: on


@pytest.mark.parametrize(("name", "folder", "without_cell", "cell"), NAMES)
def test_parts_of_a_name(name: str, folder: str, without_cell: str, cell: str) -> None:
    """A name splits into folder, file and cell, whatever the cell's values hold."""
    assert phrases.folder(name) == folder
    assert phrases.without_cell(name) == without_cell
    assert phrases.cell(name) == cell


ENGINES = [
    # id            engines                                            phrase
    ("none", (), "-"),
    ("one", (engine(0),), '"1" running'),
    ("equal", (engine(0), engine(1)), '2 x "1" running'),
    (
        "mixed",
        (engine(0), engine(1, "default", "paused"), engine(2)),
        '2 x "1" running, "default" paused',
    ),
    ("dead", (engine(0, None, "dead"), engine(1)), 'dead, "1" running'),
    ("empty-label", (engine(0, ""),), '"" running'),
]


@pytest.mark.parametrize(
    ("finals", "phrase"), [case[1:] for case in ENGINES], ids=[case[0] for case in ENGINES]
)
def test_engines(finals: tuple[EngineFinal, ...], phrase: str) -> None:
    """Engines in the same state are counted, in the order of the first of each."""
    assert phrases.engines(finals) == phrase


# fmt: off
PUSHES = [
    # outcomes                          attempts    phrases
    (("resumed",),                      (2,),       ("resumed", "2")),
    (("raised", "resumed"),             (2, 1),     ("raised, resumed", "2, 1")),
    (("raised", "resumed", "resumed"),  (2, 1, 1),  ("raised, 2 x resumed", "2, 1, 1")),
    ((),                                (),         ("-", "-")),
]
# fmt: on


@pytest.mark.parametrize(("outcomes", "attempts", "expected"), PUSHES)
def test_pushes(
    outcomes: tuple[str, ...], attempts: tuple[int, ...], expected: tuple[str, str]
) -> None:
    """Each push is told in order; outcomes that repeat are counted."""
    result = make_result("session/pushes", outcomes=outcomes, attempts=attempts)
    assert (phrases.outcomes(result), phrases.attempts(result)) == expected


# fmt: off
DURATIONS = [
    # seconds   phrase
    (0.0,       "0.00 s"),
    (0.214,     "0.21 s"),
    (9.994,     "9.99 s"),
    (9.996,     "10.0 s"),
    (61.34,     "61.3 s"),
    (99.97,     "100 s"),
    (1800.4,    "1800 s"),
]
# fmt: on


@pytest.mark.parametrize(("seconds", "phrase"), DURATIONS)
def test_duration(seconds: float, phrase: str) -> None:
    """A time fits the narrow column, whatever it rounds to."""
    assert phrases.duration(seconds) == phrase


def test_rerun_command_survives_the_shell() -> None:
    """The command selects the one cell, and the shell sees the brackets as they are."""
    result = make_result("session/it's[a b]", path="my scenarios/it's.yaml")
    command = phrases.rerun_command(result, ["--target", "mine:make"])
    assert shlex.split(command) == [
        "resync-chaos", "run", "my scenarios/it's.yaml", "-k", "session/it's[a b]",
        "--target", "mine:make",
    ]  # fmt: skip
