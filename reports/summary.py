"""``summary.md``: a run for a Buildkite annotation, the worst first, shortened with care."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

from harness.contracts import ScenarioResult, Verdict
from harness.reporting.result_file import Details
from harness.reporting.run_folder import Run, Unfinished
from reports import phrases, scenario_facts
from reports.phrases import visible
from reports.stories import Stories

MAX_BYTES = 1_000_000  # Buildkite takes 1 MiB
ROOM_BYTES = 2_000  # for the words that say what was left out
MAX_TEXT = 1_500
MAX_CHECKS = 12
NUM_SLOWEST = 5
WORST_FIRST = (Verdict.HANG, Verdict.FAIL, Verdict.INVALID)
_MARKS = re.compile(r"([\\`*_{}\[\]#|~]|^[-+]|(?<=^\d)[.)])")


def write(run: Run, stories: Stories, out_dir: Path) -> Path:
    """Write ``summary.md`` into ``out_dir``, which is made if needed, and return its path.

    Each scenario that did not pass has a block; once they fill the file, the rest are named in a
    line each, and then counted.

    Raises:
        OSError: ``out_dir`` is not writable.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    text = "\n".join(_head(run)) + "\n"
    room = MAX_BYTES - ROOM_BYTES - _size(text)
    left_out = 0
    blocks = list(_blocks(run))
    for long, short in blocks:
        block = next((each for each in (long, short) if _size(each) <= room), None)
        if block is None or left_out:
            left_out += 1
            continue
        text += block
        room -= _size(block)
    if left_out:
        text += f"\nand {left_out} more, in `report.html` and `junit.xml`.\n"
    slowest = sorted(run.results, key=lambda each: (-each.total_seconds, each.name))[:NUM_SLOWEST]
    if slowest and room > ROOM_BYTES:
        named = (f"{plain(r.name)} {phrases.duration(r.total_seconds)}" for r in slowest)
        text += f"\nSlowest: {', '.join(named)}\n"
    path = out_dir / "summary.md"
    path.write_text(text, encoding="utf-8")
    return path


def plain(text: str, limit: int = MAX_TEXT) -> str:
    """Return foreign text that Markdown and HTML leave alone, on one line, shortened."""
    shown = " ".join(visible(text).split())
    if len(shown) > limit:
        shown = f"{shown[: limit - 1]}…"
    return _MARKS.sub(r"\\\1", escape(shown, quote=False))


def code(text: str, limit: int = MAX_TEXT) -> str:
    """Return foreign text as a fenced block that nothing in it can end."""
    shown = visible(text)[:limit]
    longest = max(map(len, re.findall("`+", shown)), default=0)
    fence = "`" * max(longest + 1, 3)
    return f"{fence}\n{shown}\n{fence}\n"


def _head(run: Run) -> Iterator[str]:
    counts = phrases.counts(run.results)
    bad = len(run.results) - counts[Verdict.PASS] + len(run.unfinished)
    num = len(run.results) + len(run.unfinished)
    yield (
        f"### resync-chaos: {bad} of {num} scenarios did not pass"
        if bad
        else (f"### resync-chaos: {num} scenarios passed")
    )
    told = [f"{count} {verdict.value}" for verdict, count in counts.items()]
    if run.unfinished:
        told.append(f"{len(run.unfinished)} unfinished")
    if run.not_run:
        told.append(f"{len(run.not_run)} not run")
    took = f" in {run.info.elapsed_s:.1f} s" if run.info.elapsed_s is not None else ""
    yield f"\n{', '.join(told)}{took}\n"
    if run.info.began and run.info.elapsed_s is None:
        yield "**The run did not end by itself; this is what was known when it died.**\n"


def _blocks(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the long and the short form of each scenario that did not pass, the worst first."""
    bad = [result for result in run.results if result.verdict in WORST_FIRST]
    bad.sort(key=lambda each: (WORST_FIRST.index(each.verdict), each.name))
    hangs = [result for result in bad if result.verdict is Verdict.HANG]
    for result in hangs:
        yield _block(run, result)
    for each in run.unfinished:
        yield _unfinished(each)
    for result in bad[len(hangs) :]:
        yield _block(run, result)


def _block(run: Run, result: ScenarioResult) -> tuple[str, str]:
    short = (
        f"\n**{result.verdict.value}** {plain(result.name, 300)}: {plain(result.sentence, 300)}\n"
    )
    details = run.details.get(result.name, Details())
    checks = phrases.failed_checks(result)
    lines = [
        f"\n**{result.verdict.value}** {plain(result.name)}",
        f"\n{plain(result.sentence)}\n",
        code(phrases.rerun_command(result, run.info.rerun_options)),
        "<details><summary>expected and found, engines</summary>\n",
        *(f"- {plain(check.name)}: {plain(check.detail, 600)}" for check in checks[:MAX_CHECKS]),
        *([f"- and {len(checks) - MAX_CHECKS} more"] if len(checks) > MAX_CHECKS else []),
        f"- {plain(scenario_facts.one_line(result, details))}",
        f"- proves: {plain(result.proves)}",
        "\n</details>\n",
    ]
    return "\n".join(lines), short


def _unfinished(each: Unfinished) -> tuple[str, str]:
    line = f"\n**unfinished** {plain(each.name, 300)}: {plain(each.reason, 300)}\n"
    return line, line


def _size(text: str) -> int:
    return len(text.encode())
