"""The table at the end of a run."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from sample_results import GOLDEN, HANGING, RESULTS, make_result

from harness.contracts import Verdict
from harness.reporting.result_file import RESULT
from harness.watch import GRAPH
from reports import phrases, table


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
    whole = ("  evidence ", "  journal ", "  run again ")
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


PROOF = """\
rank 0 is in all_reduce #7 while ranks 1-3 wait for it in the gather of layers.0.mlp.up_proj.weight

who        in             shape   tensor
rank 0     all_reduce #7  [1]     -
           at push (sketch.py:7)
ranks 1-3  all_gather #3  [4, 2]  layers.0.mlp.up_proj.weight
           waits for rank 0, which is in all_reduce #7 of the [bold] agreement\x1b[31m group"""


def _halted(number: int) -> str:
    return f"controls/sketch[{number}]"


def _shown(width: int, *results: str, verdict: Verdict = Verdict.HANG) -> str:
    """Return what is printed of scenarios of these names, which were all halted."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    evidence = {GRAPH: PROOF, "rank:0": "all of its stack"}
    made = [make_result(name, verdict=verdict, evidence=evidence) for name in results]
    table.render(made, console)
    return printed(console)


@pytest.mark.parametrize("verdict", [Verdict.HANG, Verdict.FAIL])
def test_proof(verdict: Verdict) -> None:
    """A halted push shows the sentence, then who is in what, then where all the evidence is."""
    lines = _shown(96, _halted(4), verdict=verdict).splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("  proof "))
    assert lines[first - 1].startswith("  why ")
    assert lines[first : first + 6] == [
        "  proof     who        in             shape   tensor",
        "            rank 0     all_reduce #7  [1]     -",
        "                       at push (sketch.py:7)",
        "            ranks 1-3  all_gather #3  [4, 2]  layers.0.mlp.up_proj.weight",
        "                       waits for rank 0, which is in all_reduce #7 of the [bold]",
        "                         agreement\\x1b[31m group",
    ]
    assert f"  evidence  out/controls/sketch/{RESULT}" in lines
    assert "all of its stack" not in "\n".join(lines)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_proof_fits(width: int) -> None:
    """No line of a proof is wider than the terminal."""
    lines = _shown(width, _halted(4)).splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("  proof "))
    end = next(n for n, line in enumerate(lines) if line.startswith("  proves "))
    assert max(map(len, lines[begin:end])) <= width


def test_few_proofs() -> None:
    """Of many hangs the first few are shown with their proof; the others say where it is."""
    names = [_halted(number) for number in range(table.MAX_PROOFS + 2)]
    lines = _shown(100, *names).splitlines()
    labels = [line.split()[0] for line in lines if line.startswith("  ")]
    assert labels.count("proof") == table.MAX_PROOFS
    assert labels.count("evidence") == labels.count("why") == len(names)


def test_no_proof() -> None:
    """What was not halted has none, whatever its evidence."""
    assert phrases.proof(make_result("one", evidence={"rank:0": "a\n\nstack"})) == ""
    assert phrases.proof(make_result("one")) == ""


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
