"""What is shown while a run goes on."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, ConsoleDimensions
from sample_results import FAILING, HANGING, make_result

from harness.contracts import Display
from reports.eta import Plan
from reports.live import (
    LiveDisplay,
    PlainDisplay,
    Progress,
    in_words,
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


def running(total: int = 8, plan: Plan | None = None) -> Progress:
    """Return a run that began at 100.0, and of which four have ended and two are running."""
    progress = Progress(total, 100.0, plan or Plan(limits_s={"a/b": 26.0}))
    for result in (FIRST, FIRST, FAILING, HANGING):
        progress.start(result.name, 100.0)
        progress.finish(result, 101.0)
    progress.start("a/b", 102.0)
    progress.running["a/b"].comes_to("push 1: \x1b[2J", 103.5)
    progress.running["a/b"].comes_to("push 1: gather\nx", 105.0)
    progress.start("a/longer", 105.75)
    return progress


def test_picture() -> None:
    """The bar, counts and times; of each running one its push against its limit, and its step."""
    assert picture(running(), 106.0, terminal()).plain == (
        "━━━━━━━━━━━━━───────────── 4/8  2 pass, 1 fail, 1 hang, 0 invalid  6 s, 3 s left\n"
        "scenario    this push   in all  what it does\n"
        "a/b       2.5 of 26 s    4.0 s  push 1  gather x\n"
        "a/longer                 0.2 s  starting"
    )


def test_narrow_picture() -> None:
    """A narrow terminal keeps the end of each name, the push's time and the time left."""
    progress = running()
    progress.running.clear()
    name = "session/one_failure[engine.update-nccl]"
    progress.start(name, 102.0)
    progress.running[name].comes_to("control run, push 1: gather embed", 105.0)
    assert picture(progress, 106.0, terminal(width=60)).plain == (
        "━━━━━━━━━━━━━━━━━━━━──────────────────── 4/8  6 s, 3 s left\n"
        "2 pass, 1 fail, 1 hang, 0 invalid\n"
        "scenario                  this push  what it does\n"
        "…ure[engine.update-nccl]      1.0 s  control run, push 1  g…"
    )


@pytest.mark.parametrize("height", [1, 2, 3, 6])
def test_picture_of_a_small_screen(height: int) -> None:
    """The table never wraps nor scrolls: it is cut to the screen, and counts what has no room."""
    progress = Progress(8, 0.0)
    for number in range(9):
        progress.start(f"session/one_failure[{number}]", 0.0)
    lines = picture(progress, 1.0, terminal(width=30, height=height)).plain.split("\n")
    assert len(lines) <= max(height - 1, 1)
    assert max(map(len, lines)) <= 30
    if height == 6:
        assert lines[-1] == "and 8 more"


def test_a_narrower_terminal() -> None:
    """Lines that a terminal has wrapped when it became narrower are taken back before the next."""
    console = terminal(width=100)
    display = LiveDisplay(console, clock=lambda: 1.0)
    display.started("session/one")
    display.doing("session/one", "push 1: " + "y" * 60)
    display.paint()
    shown = Progress(0, 1.0), 1.0
    shown[0].start("session/one", 1.0)
    shown[0].running["session/one"].comes_to("push 1: " + "y" * 60, 1.0)
    before = len(output(console))
    heights = [-(-len(line) // 50) for line in picture(*shown, console).plain.split("\n")]
    console.size = ConsoleDimensions(50, 25)
    display.paint()
    gone_up = output(console)[before:].count("\x1b[1A")
    display.end()
    assert heights == [2, 1, 2]
    assert gone_up == 2


TIMES = [(0.4, "0 s"), (99.4, "99 s"), (99.6, "1 min 40 s"), (3599.0, "59 min 59 s"),
         (3600.0, "1 h 00 min"), (-1.0, "0 s")]  # fmt: skip


@pytest.mark.parametrize(("seconds", "words"), TIMES)
def test_in_words(seconds: float, words: str) -> None:
    """Times are told as one reads them."""
    assert in_words(seconds) == words


def test_what_is_running_at_once() -> None:
    """The time left is shared by as many as were seen running at once."""
    assert running().left_s(106.0) == running().eta.left_s({"a/b": 4.0, "a/longer": 0.25}, 2)


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
