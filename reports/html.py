"""``report.html``: a whole run in one file that a browser opens from disk, without a network.

The overview is HTML and works without scripts. What is told of each scenario is JSON, deflated and
in base 64, a few scenarios together, and drawn when it is opened: a page of hundreds opens at once.
Timelines are drawn as SVG, which prints and can be read by assistive technology, with D3's modules
for zoom, scales and axes; wait-for graphs are laid out by dagre. Both are in ``reports/vendor``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from harness.contracts import Verdict
from harness.reporting.result_file import Details
from harness.reporting.run_folder import Run
from reports import phrases, scenario_facts
from reports.packing import packed
from reports.page_data import control_data, control_journal, scenario_data, unfinished_data
from reports.phrases import visible
from reports.stories import Stories

HERE = Path(__file__).parent
# In the order in which they need each other.
D3 = ("dispatch", "selection", "drag", "color", "interpolate", "timer", "ease", "transition",
      "zoom", "array", "format", "time", "time-format", "scale", "axis")  # fmt: skip
VENDORED = (*(f"d3-{name}.min.js" for name in D3), "dagre.min.js")
SCRIPTS = ("data.js", "tracks.js", "timeline.js", "graph.js", "scenario.js", "main.js")
GLYPHS = {"pass": "✓", "fail": "✗", "hang": "∞", "invalid": "?", "unfinished": "…", "none": "-"}
WORST_FIRST = ("hang", "fail", "unfinished", "invalid", "pass")
MAX_CARDS = 12
NUM_SLOWEST = 10
GROUP = 8  # scenarios packed together: alike ones compress to half


@dataclass(frozen=True, kw_only=True)
class Row:
    """One scenario as the overview shows it."""

    id: int
    name: str
    verdict: str
    sentence: str
    again: str = ""
    engines: str = ""
    short: str = ""
    outcomes: str = "-"
    attempts: str = "-"
    seconds: str = "-"
    total: str = "-"
    total_s: float = 0.0
    folder: str = ""
    points: tuple[str, ...] = ()
    transport: str = ""


def write(run: Run, stories: Stories, out_dir: Path) -> Path:
    """Write ``report.html`` into ``out_dir``, which is made if needed, and return its path.

    Raises:
        OSError: ``out_dir`` is not writable.
    """
    rows = _rows(run)
    page = _template().render(
        **_overview(run, rows),
        css=Markup(_read("page/page.css")),  # ours: nothing of a run is in it
        data=_data(run, stories, rows),
        licences=_licences(),
        scripts=[
            Markup(_read(name))  # the same
            for name in (*(f"vendor/{each}" for each in VENDORED), *(f"page/{s}" for s in SCRIPTS))
        ],
    )
    out_dir.mkdir(parents=True, exist_ok=True)
    path = out_dir / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(HERE / "page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
    )
    return environment.get_template("page.html.j2")


def _licences() -> Markup:
    """Return the licences of what is vendored, which must go where it goes."""
    texts = (path.read_text("utf-8") for path in sorted((HERE / "vendor/licences").glob("*.txt")))
    return Markup("\n".join(dict.fromkeys(texts)))  # ours: nothing of a run is in it


def _shown(value: object) -> object:
    """Spell out what a page cannot show, in every text that is put into it but our own."""
    return visible(value) if type(value) is str else value


def _read(name: str) -> str:
    text = (HERE / name).read_text(encoding="utf-8")
    assert "</script" not in text, f"{name} would end its own element"
    return text.replace("\x01", "\\x01")  # dagre has one in a string


def _rows(run: Run) -> list[Row]:
    """Return a row per scenario, by name: that is also the order of next and previous."""
    rows = [(result.name, result) for result in run.results]
    names = sorted([*(n for n, _ in rows), *(each.name for each in run.unfinished)])
    number = {name: index for index, name in enumerate(names)}
    found = []
    for name, result in rows:
        details = run.details.get(name, Details())
        found.append(
            Row(
                id=number[name],
                name=visible(name),
                verdict=result.verdict.value,
                sentence=visible(result.sentence),
                again=visible(phrases.rerun_command(result, run.info.rerun_options)),
                engines=scenario_facts.one_line(result, details),
                short=visible(phrases.engines(result.engines)),
                outcomes=phrases.outcomes(result),
                attempts=phrases.attempts(result),
                seconds=phrases.duration(result.seconds),
                total=phrases.duration(result.total_seconds),
                total_s=result.total_seconds,
                folder=visible(phrases.folder(name)) or "-",
                points=tuple(map(visible, scenario_facts.fault_points(details))),
                transport=scenario_facts.transport(details),
            )
        )
    for each in run.unfinished:
        reason = visible(each.reason)
        found.append(Row(id=number[each.name], name=visible(each.name), verdict="unfinished",
                         sentence=reason, folder=visible(phrases.folder(each.name)) or "-",
                         points=("not known",)))  # fmt: skip
    return sorted(found, key=lambda row: row.id)


def _overview(run: Run, rows: list[Row]) -> dict[str, Any]:
    bad = [row for row in rows if row.verdict != "pass"]
    bad.sort(key=lambda row: WORST_FIRST.index(row.verdict))
    counts = {each.value: sum(row.verdict == each for row in rows) for each in Verdict}
    if run.unfinished:
        counts["unfinished"] = len(run.unfinished)
    if run.not_run:
        counts["none"] = len(run.not_run)
    matrix: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        for point in row.points:
            matrix.setdefault((point, row.folder, row.transport), []).append(row)
    columns = sorted({(row.folder, row.transport) for row in rows})
    # A wide table is cut off on the right: where something did not pass comes first.
    troubled = {row.folder for row in bad}
    folders = sorted({row.folder for row in rows}, key=lambda each: (each not in troubled, each))
    return {
        "headline": _headline(run, len(rows), len(bad)),
        "counts": counts,
        "glyphs": GLYPHS,
        "notes": list(_notes(run)),
        "not_run": ", ".join(map(visible, run.not_run)),
        "worst": bad[:MAX_CARDS],
        "num_more": max(len(bad) - MAX_CARDS, 0),
        "rows": rows,
        "matrix": matrix,
        "points": sorted({point for point, _, _ in matrix}),
        "folders": [
            {"name": folder, "transports": [t for f, t in columns if f == folder]}
            for folder in folders
        ],
        "slowest": sorted(rows, key=lambda row: -row.total_s)[:NUM_SLOWEST],
        "about": list(_about(run)),
        "command": visible(" ".join(run.info.command)),
    }


def _headline(run: Run, num_rows: int, num_bad: int) -> str:
    if not num_rows:
        return "No scenario ran"
    if run.not_run and not num_bad:
        return f"{num_rows} scenarios passed, {len(run.not_run)} were not run"
    if not num_bad:
        return f"All {num_rows} scenarios passed" if num_rows > 1 else "The scenario passed"
    return f"{num_bad} of {num_rows} scenarios did not pass"


def _notes(run: Run) -> Iterator[str]:
    if run.info.elapsed_s is None and run.info.began:
        yield "The run did not end by itself: what follows is what was known when it died."


def _about(run: Run) -> Iterator[tuple[str, str]]:
    if run.info.began:
        yield "began", run.info.began
    if run.info.elapsed_s is not None:
        yield "took", phrases.duration(run.info.elapsed_s)
    for name, version in run.info.versions.items():
        yield visible(name), visible(version)


def _data(run: Run, stories: Stories, rows: list[Row]) -> Mapping[str, str]:
    """Return the packed texts of the page, by the id of their element."""
    results = {visible(result.name): result for result in run.results}
    unfinished = {visible(each.name): each for each in run.unfinished}
    data: dict[str, str] = {}
    controls: dict[str, None] = {}
    for first in range(0, len(rows), GROUP):
        group = []
        for row in rows[first : first + GROUP]:
            if row.name in results:
                group.append(scenario_data(run, results[row.name], stories))
                if (control := group[-1]["control"]) is not None:
                    controls[control] = None
            else:
                group.append(unfinished_data(run, unfinished[row.name], stories))
        data[f"group-{first // GROUP}"] = packed(group)
    there = [each for each in controls if os.path.exists(control_journal(run, each))]
    for first in range(0, len(there), GROUP):
        journals = (control_journal(run, each) for each in there[first : first + GROUP])
        told = [control_data(journal, stories) for journal in journals]
        data[f"controls-{first // GROUP}"] = packed(told)
    index = {
        "group": GROUP,
        "count": len(rows),
        "controls": {control: number for number, control in enumerate(there)},
        "glyphs": GLYPHS,
        "names": [row.name for row in rows],
    }
    return {"index": packed(index), **data}
