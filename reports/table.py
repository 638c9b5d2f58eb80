"""The table at the end of a run: every verdict, what failed and how to run it again."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.contracts import ScenarioResult, Verdict
from reports import phrases

STYLES = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.HANG: "bold magenta",
    Verdict.INVALID: "bold yellow",
}
WIDE = 100  # columns from which the table is set with wider gaps
NARROW_NAME = 30  # columns of a scenario's name below that: what 80 columns have to spare
LABEL_WIDTH = 9  # of the words that begin the lines of a failure's block
PROOF_MARGIN = 3  # columns beside a proof that are not its label's
PROOF_MIN_WIDTH = 40
PROOF_INDENT = 2  # of a line that goes on
MAX_PROOFS = 3  # hangs that are shown with their proof: more would push it off the screen
FULL_EVIDENCE = "result.json"  # beside the journal


def render(
    results: Sequence[ScenarioResult],
    console: Console,
    *,
    elapsed_s: float | None = None,
    num_not_run: int = 0,
    rerun_options: Sequence[str] = (),
) -> None:
    """Print the table, a block per scenario that did not pass, and the line that counts verdicts.

    Passing scenarios come first, by folder; the others stand last, where the screen ends.

    Args:
        results: the scenarios that finished.
        console: where to print; its width, colours and encoding are respected.
        elapsed_s: wall-clock seconds of the run, for the closing line.
        num_not_run: selected scenarios that an interrupted run did not finish.
        rerun_options: what the command that runs one scenario again needs, such as ``--target``.
    """
    in_order = sorted(results, key=lambda each: (phrases.folder(each.name), each.name))
    passed = [result for result in in_order if result.verdict is Verdict.PASS]
    others = [result for result in in_order if result.verdict is not Verdict.PASS]
    if in_order:
        console.print(_table(passed, others, console))
        console.print()
    proven = [result.name for result in others if phrases.proof(result)][:MAX_PROOFS]
    for result in others:
        _print_block(result, console, rerun_options, proven=result.name in proven)
    console.print(summary(results, elapsed_s=elapsed_s, num_not_run=num_not_run))


def summary(
    results: Sequence[ScenarioResult], *, elapsed_s: float | None = None, num_not_run: int = 0
) -> Text:
    """Return the closing line: ``118 pass, 0 fail, 0 hang, 0 invalid in 61.3 s``."""
    line = Text()
    for verdict, count in phrases.counts(results).items():
        style = STYLES[verdict] if count else "dim"
        line.append(", " if line else "").append(f"{count} {verdict}", style)
    if num_not_run:
        line.append(", ").append(f"{num_not_run} not run", "bold")
    if elapsed_s is not None:
        line.append(f" in {elapsed_s:.1f} s")
    return line


def safe_text(text: str, console: Console, style: str = "") -> Text:
    """Return foreign text as rich takes it: never as markup, nor as the terminal's commands."""
    shown = phrases.visible(text)
    if console.options.ascii_only:
        shown = shown.encode("ascii", "backslashreplace").decode()
    return Text(shown, style)


def _table(
    passed: Sequence[ScenarioResult], others: Sequence[ScenarioResult], console: Console
) -> Table:
    table = _wide_columns() if console.width >= WIDE else _narrow_columns(console.width)
    for _, members in groupby(passed, key=lambda each: phrases.folder(each.name)):
        for label, result in _rows(members):
            _add_row(table, label, result, console)
        table.add_section()
    for result in others:
        _add_row(table, result.name, result, console)
    return table


def _wide_columns() -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("scenario", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("outcome")
    table.add_column("attempts")
    table.add_column("engines", overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    return table


def _narrow_columns(width: int) -> Table:
    """Return columns that use each of 80 characters: one between them, words wrapped early."""
    verdict, outcome, attempts, time, gaps = 7, 8, 8, 6, 5
    rest = max(width - verdict - outcome - attempts - time - gaps, 2)
    name = min(NARROW_NAME, rest * 2 // 3)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, pad_edge=False)
    table.add_column("scenario", overflow="fold", width=name)
    table.add_column("verdict", width=verdict)
    table.add_column("outcome", width=outcome)
    table.add_column("attempts", width=attempts)
    table.add_column("engines", overflow="fold", width=rest - name)
    table.add_column("time", justify="right", no_wrap=True, width=time)
    return table


def _rows(members: Iterable[ScenarioResult]) -> Iterator[tuple[str, ScenarioResult | None]]:
    """Yield a row per scenario of one folder; the cells of a matrix stand under their file."""
    for name, cells in groupby(members, key=lambda each: phrases.without_cell(each.name)):
        family = list(cells)
        if len(family) == 1:
            yield family[0].name, family[0]
            continue
        yield name, None
        for result in family:
            yield f"  {phrases.cell(result.name)}", result


def _add_row(table: Table, label: str, result: ScenarioResult | None, console: Console) -> None:
    first = safe_text(label, console)
    if result is None:
        table.add_row(first)
        return
    table.add_row(
        first,
        Text(result.verdict.value, STYLES[result.verdict]),
        safe_text(phrases.outcomes(result), console),
        phrases.attempts(result),
        safe_text(phrases.engines(result.engines), console),
        phrases.duration(result.seconds),
    )


def _print_block(
    result: ScenarioResult, console: Console, rerun_options: Sequence[str], *, proven: bool
) -> None:
    """Print why one scenario did not pass. Paths and commands stay one line, to be copied."""
    heading = Text(result.verdict.value, STYLES[result.verdict])
    console.print(heading.append(" ").append_text(safe_text(result.name, console, "bold")))
    lines = Table.grid(padding=(0, 1))
    lines.add_column(style="dim", width=LABEL_WIDTH, no_wrap=True)
    lines.add_column(overflow="fold")
    lines.add_row("why", safe_text(result.sentence, console))
    if proven:
        lines.add_row("proof", _proof(result, console))
    lines.add_row("proves", safe_text(result.proves, console))
    for check in phrases.failed_checks(result):
        lines.add_row("check", safe_text(f"{check.name}: {check.detail}", console))
    for final in result.engines:
        state = f"{phrases.engine(final)}, weights: {final.weights}"
        lines.add_row(f"engine {final.index}", safe_text(state, console))
    command = phrases.rerun_command(result, rerun_options)
    console.print(Padding(lines, (0, 0, 0, 2)))
    places = {"journal": str(result.journal), "run again": command}
    if result.evidence:
        places = {"evidence": str(result.journal.with_name(FULL_EVIDENCE)), **places}
    for label, value in places.items():
        line = Text("  ").append(f"{label:<{LABEL_WIDTH}} ", "dim")
        console.print(line.append_text(safe_text(value, console)), soft_wrap=True)
    console.print()


def _proof(result: ScenarioResult, console: Console) -> Text:
    """Return the proof of a hang; a line that is too long goes on below, as far indented."""
    width = max(console.width - LABEL_WIDTH - PROOF_MARGIN, PROOF_MIN_WIDTH)
    heading, *rest = (
        part
        for line in safe_text(phrases.proof(result), console).plain.splitlines()
        for part in textwrap.wrap(
            line,
            width,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + PROOF_INDENT),
            break_on_hyphens=False,
        )
    )
    text = Text().append(heading, "dim")
    return text.append("".join(f"\n{line}" for line in rest))
