"""What the soak makes of a run, and the table of all."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.contracts import Verdict
from harness.soak.__main__ import report
from harness.soak.tally import Silence, SoakRun, longest_silence, print_table, share_of

QUIET = Silence(seconds=0.0, called=())


def _event(t: float, event: str, **fields: Any) -> Mapping[str, Any]:
    return {"t": t, "who": "rank:0", "event": event, **fields}


def _run(**fields: Any) -> SoakRun:
    given: dict[str, Any] = {
        "kind": "succeeds at once",
        "loaded": False,
        "verdict": Verdict.PASS,
        "sentence": "at_once[ipc]: It holds.",
        "calls": (),
        "silence": QUIET,
        "share": None,
        "seconds": 0.25,
        "out_dir": Path("out/soak/1"),
    }
    return SoakRun(**given | fields)


PUSH = [
    _event(1.0, "command", command="push", phase="begin"),
    _event(1.5, "step", name="agree.start"),
    _event(4.0, "token"),  # the load is served all the time
    _event(4.5, "step", name="agree.transfer"),
    _event(5.0, "command", command="push", phase="end"),
]
OUTSIDE = [_event(-9.0, "push"), _event(99.0, "command", command="close", phase="begin")]
# fmt: off
SILENCES = [
    # id, events, the longest silence in seconds, what it was called
    ("nothing-ran",    [_event(0.0, "scenario")],                           0.0, ()),
    ("not-named",      PUSH,                                                3.0, ()),
    ("out-of-order",   PUSH[::-1],                                          3.0, ()),
    ("named-in-it",    [*PUSH, _event(2.0, "diagnosis", kind="waiting")],   3.0, ("waiting",)),
    ("named-after",    [*PUSH, _event(4.51, "diagnosis", kind="slow")],     3.0, ("slow",)),
    ("named-earlier",  [*PUSH, _event(1.2, "diagnosis", kind="slow")],      3.0, ()),
    ("outside",        [*PUSH, *OUTSIDE],                                   3.0, ()),
]
HANGS = [
    # id, fields, called a hang, good
    ("passes",             {},                                                      False, True),
    ("named-and-passes",   {"calls": ("slow", "waiting", "crashed", "frozen")},     False, True),
    ("deadlock",           {"calls": ("deadlock",)},                                True,  False),
    ("stuck",              {"calls": ("slow", "stuck")},                            True,  False),
    ("ended-by-the-limit", {"verdict": Verdict.HANG, "calls": ("busy",)},           True,  False),
    ("fails",              {"verdict": Verdict.FAIL},                               False, False),
    ("proves-nothing",     {"verdict": Verdict.INVALID},                            False, False),
]
# fmt: on


@pytest.mark.parametrize(
    ("events", "seconds", "called"),
    [case[1:] for case in SILENCES],
    ids=[case[0] for case in SILENCES],
)
def test_longest_silence(
    events: list[Mapping[str, Any]], seconds: float, called: tuple[str, ...]
) -> None:
    """Only events of the push break a silence; what it was called is told in it or just after."""
    assert longest_silence(events) == Silence(seconds=seconds, called=called)


def test_share_of() -> None:
    """A slow rank's own word counts; a run without one has none."""
    assert share_of([*PUSH, _event(9.0, "cpu_share", share=0.09)]) == 0.09
    assert share_of(PUSH) is None


@pytest.mark.parametrize(
    ("fields", "hang", "good"), [case[1:] for case in HANGS], ids=[case[0] for case in HANGS]
)
def test_called_a_hang(fields: dict[str, Any], hang: bool, good: bool) -> None:
    """A deadlock or something stuck that was named is a false alarm, even in a run that passed."""
    run = _run(**fields)
    assert (run.called_a_hang, run.is_good) == (hang, good)


def _printed(runs: list[SoakRun]) -> str:
    console = Console(file=io.StringIO(), width=110, color_system=None)
    print_table(runs, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_table() -> None:
    """A row per kind, at rest and loaded apart, with counts, the slowest and the silence."""
    slow = {"kind": "a gather takes 3 s", "silence": Silence(seconds=3.0, called=("slow",))}
    text = _printed(
        [
            _run(share=0.085),
            _run(seconds=0.75, calls=("stuck",)),
            _run(verdict=Verdict.FAIL),
            _run(**slow, calls=("slow",)),
            _run(**slow, calls=("slow", "waiting"), loaded=True),
        ]
    )
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "succeeds at once 3 1 1 0.8 s 0.00 s, not named 1 stuck" in rows
    assert "a gather takes 3 s 1 0 0 0.2 s 3.00 s, slow 1 slow" in rows
    loaded = rows.index("beside busy processes:")
    assert rows[loaded + 1] == "a gather takes 3 s 1 0 0 0.2 s 3.00 s, slow 1 slow, 1 waiting"
    assert "succeeds at once got 8.5% of one at the median (8.5% to 8.5%)" in text


# fmt: off
REPORTS = [
    # id, runs, asked, good, the last line
    ("all-good", [_run(), _run()],                  2, True,
     "2 runs, 0 called a hang, 0 failed, in 9 s"),
    ("a-hang",   [_run(), _run(calls=("stuck",))],  2, False,
     "2 runs, 1 called a hang, 0 failed, in 9 s"),
    ("a-failure", [_run(verdict=Verdict.FAIL)],     3, False,
     "1 runs, of 3 asked for, 0 called a hang, 1 failed, in 9 s"),
    ("none",     [],                                3, False,
     "0 runs, of 3 asked for, 0 called a hang, 0 failed, in 9 s"),
]
# fmt: on


@pytest.mark.parametrize(
    ("runs", "asked", "good", "line"),
    [case[1:] for case in REPORTS],
    ids=[case[0] for case in REPORTS],
)
def test_report(runs: list[SoakRun], asked: int, good: bool, line: str) -> None:
    """The count comes last, and a soak without runs proves nothing."""
    console = Console(file=io.StringIO(), width=200, color_system=None)
    assert report(runs, console, asked=asked, elapsed_s=9.2) is good
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[-1] == line
    shown = [each for each in lines if "(out/soak/1)" in each]
    assert len(shown) == sum(not run.is_good for run in runs)
