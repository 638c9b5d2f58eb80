"""The table at the end of a run."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from sample_results import GOLDEN, HANGING, RESULTS, make_result

from reports import table


def printed(console: Console) -> str:
    """Return what was printed, without the blanks that fill a line."""
    assert isinstance(console.file, io.StringIO | io.TextIOWrapper)
    console.file.seek(0)
    return "".join(f"{line.rstrip()}\n" for line in console.file.read().splitlines())


@pytest.mark.parametrize("width", [80, 200])
def test_golden(width: int) -> None:
    """Narrow and wide terminals get the same facts, set for their width."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    table.render(RESULTS, console, elapsed_s=61.34, rerun_options=("--target", "mine:make"))
    golden = (GOLDEN / f"table_{width}.txt").read_text(encoding="utf-8")
    assert printed(console) == golden


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_lines_fit(width: int) -> None:
    """No line is wider than the terminal, but for those that are there to be copied."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    table.render(RESULTS, console)
    whole = ("  journal ", "  run again ")
    lines = [line for line in printed(console).splitlines() if not line.startswith(whole)]
    assert max(map(len, lines)) <= width


def test_no_color() -> None:
    """Under NO_COLOR a terminal gets bold and dim at most, and no colour."""
    console = Console(file=io.StringIO(), width=80, force_terminal=True, _environ={"NO_COLOR": "1"})
    table.render(RESULTS, console)
    assert "\x1b[3" not in printed(console)


def test_ascii_terminal() -> None:
    """A terminal that cannot show a character gets its escape, not a crash."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=file, width=80, color_system=None)
    table.render([*RESULTS, make_result("größer/naïve")], console)
    assert "gr\\xf6\\xdfer/na\\xefve" in printed(console)


def test_engine_text_cannot_command_the_terminal() -> None:
    """Escape sequences and markup in an engine's text are shown, not obeyed."""
    console = Console(file=io.StringIO(), width=200, color_system=None)
    table.render(RESULTS, console)
    text = printed(console)
    assert "\x1b" not in text
    assert "\\x1b[31mdefault\\x00\\udc9b" in text
    assert "[bold]tags & <brackets>" in text


# fmt: off
SUMMARIES = [
    # id            elapsed_s not_run line
    ("finished",    61.34,    0,      "1 pass, 0 fail, 1 hang, 0 invalid in 61.3 s"),
    ("interrupted", 3.0,      76,     "1 pass, 0 fail, 1 hang, 0 invalid, 76 not run in 3.0 s"),
    ("no-clock",    None,     0,      "1 pass, 0 fail, 1 hang, 0 invalid"),
]
# fmt: on


@pytest.mark.parametrize(
    ("elapsed_s", "num_not_run", "line"),
    [case[1:] for case in SUMMARIES],
    ids=[case[0] for case in SUMMARIES],
)
def test_summary(elapsed_s: float | None, num_not_run: int, line: str) -> None:
    """The closing line counts each verdict, and what an interrupted run left out."""
    results = [make_result("a"), HANGING]
    found = table.summary(results, elapsed_s=elapsed_s, num_not_run=num_not_run)
    assert found.plain == line


def test_nothing_ran() -> None:
    """A run that finished nothing prints the closing line alone."""
    console = Console(file=io.StringIO(), width=80, color_system=None)
    table.render([], console, num_not_run=3)
    assert printed(console) == "0 pass, 0 fail, 0 hang, 0 invalid, 3 not run\n"
