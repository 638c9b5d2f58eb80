"""What is shown while a run goes on."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from sample_results import FAILING, HANGING, make_result

from harness.contracts import Display
from reports.live import (
    LiveDisplay,
    PlainDisplay,
    Progress,
    Running,
    make_display,
    picture,
)

FIRST = make_result("session/one_failure[engine.update-ipc]")


def terminal(width: int = 80, height: int = 25) -> Console:
    return Console(
        file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None
    )


def output(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def run(display: Display) -> None:
    """Show a run of two scenarios, of which one fails."""
    display.begin(12)
    display.started(FIRST.name)
    display.doing(FIRST.name, "push 1, attempt 2")
    display.started(FAILING.name)
    display.finished(FIRST)
    display.finished(FAILING)
    display.end()
    display.end()


# fmt: off
DISPLAYS = [
    # id          is_terminal  term     plain  display
    ("terminal",  True,        "xterm", False, LiveDisplay),
    ("asked",     True,        "xterm", True,  PlainDisplay),
    ("piped",     False,       "xterm", False, PlainDisplay),
    ("dumb",      True,        "dumb",  False, PlainDisplay),
]
# fmt: on


@pytest.mark.parametrize(
    ("is_terminal", "term", "plain", "display"),
    [case[1:] for case in DISPLAYS],
    ids=[case[0] for case in DISPLAYS],
)
def test_make_display(is_terminal: bool, term: str, plain: bool, display: type) -> None:
    """The picture moves only on a terminal that can, and where lines were not asked for."""
    console = Console(file=io.StringIO(), force_terminal=is_terminal, _environ={"TERM": term})
    assert type(make_display(console, plain)) is display


def test_plain_lines() -> None:
    """A pipe gets a line per finished scenario, and why where it did not pass."""
    console = Console(file=io.StringIO(), width=40)
    run(PlainDisplay(console))
    assert output(console) == (
        "[ 1/12] pass    session/one_failure[engine.update-ipc]  0.21 s\n"
        "[ 2/12] fail    draft/finish_fails[once]  0.21 s\n"
        "        Engine 1 runs, where the outcome raised keeps it paused.\n"
    )


def test_live_keeps_what_did_not_pass() -> None:
    """After the picture has gone the failure is on the screen, and the pass is not."""
    console = terminal()
    run(LiveDisplay(console))
    text = output(console)
    assert "fail    draft/finish_fails[once]  0.21 s" in text
    assert "Engine 1 runs, where the outcome raised keeps it paused." in text
    assert "pass    session" not in text


def test_end_without_begin() -> None:
    """A run that fails before it begins can end its display."""
    console = terminal()
    LiveDisplay(console).end()
    assert output(console) == ""


def test_picture() -> None:
    """The bar, the counts, the times, and what each running scenario does."""
    progress = Progress(total=8, began=100.0, results=[FIRST, FIRST, FAILING, HANGING])
    progress.running["a/b"] = Running("a/b", 102.0, "push 1: \x1b[2J")
    progress.running["a/longer"] = Running("a/longer", 105.75)
    assert picture(progress, 106.0, terminal()).plain == (
        "━━━━━━━━━━━━──────────── 4/8  2 pass, 1 fail, 1 hang, 0 invalid  6 s, 6 s left\n"
        "  a/b        4.0 s  push 1: \\x1b[2J\n"
        "  a/longer   0.2 s  starting"
    )


def test_picture_of_a_small_screen() -> None:
    """The picture never wraps nor scrolls: it is cut to the width, and counts what has no room."""
    progress = Progress(total=8, began=0.0)
    for number in range(9):
        progress.running[str(number)] = Running(f"session/one_failure[{number}]", 0.0)
    lines = picture(progress, 1.0, terminal(width=30, height=6)).plain.split("\n")
    assert len(lines) == 5
    assert lines[-1] == "  and 6 more"
    assert max(map(len, lines)) <= 30


ETAS = [
    # done, now_s, eta_s   (8 in total, began at 100.0)
    (0, 110.0, None),
    (2, 110.0, None),
    (4, 110.0, 10.0),
    (8, 110.0, 0.0),
]


@pytest.mark.parametrize(("done", "now_s", "eta_s"), ETAS)
def test_eta(done: int, now_s: float, eta_s: float | None) -> None:
    """The time left follows the rate so far, once there is one."""
    progress = Progress(total=8, began=100.0, results=[FIRST] * done)
    assert progress.eta_s(now_s) == eta_s


def test_quiet() -> None:
    """Only what does not pass is told, with its place in the run and how to run it again."""
    console = terminal(width=200)
    run(make_display(console, plain=False, quiet=True, rerun_options=["--target", "a:b"]))
    place, sentence, again = output(console).splitlines()
    assert place.startswith("[ 2/12] fail    draft/finish_fails[once]")
    assert sentence.strip() == FAILING.sentence
    assert again.strip() == (
        "again: resync-chaos run scenarios/draft/finish_fails.yaml -k 'draft/finish_fails[once]' "
        "--target a:b"
    )
