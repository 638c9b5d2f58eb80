"""What ``report.html`` carries of each scenario, as JSON; the page's scripts draw it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.contracts import ScenarioResult
from harness.reporting.result_file import Details
from harness.reporting.run_folder import JOURNAL, Run, Unfinished
from reports import phrases
from reports.attempts import attempts_of
from reports.first_difference import differences
from reports.packing import story_as_json, ticks
from reports.phrases import visible
from reports.scenario_facts import check_rows, engine_cards, setting
from reports.stories import Stories
from reports.story import Story
from reports.wait_graph import graph_of

MAX_EVIDENCE = 200_000  # characters of one process's stacks
MAX_OPEN = 40
MAX_ATTEMPTS = 100


def scenario_data(run: Run, result: ScenarioResult, stories: Stories) -> dict[str, Any]:
    """Return everything that the page tells of one scenario."""
    details = run.details.get(result.name, Details())
    story = stories.of(result.journal)
    calm = _control(run, details, stories)
    return {
        "name": visible(result.name),
        "verdict": result.verdict.value,
        "sentence": visible(result.sentence),
        "proves": visible(result.proves),
        "seconds": phrases.duration(result.seconds),
        "total": phrases.duration(result.total_seconds),
        "outcomes": phrases.outcomes(result),
        "again": visible(phrases.rerun_command(result, run.info.rerun_options)),
        "journal": _relative(run, result.journal),
        "setting": setting(details),
        "checks": check_rows(result),
        "engines": engine_cards(result, details, story),
        "attempts": _attempts(story, details),
        "ranks": _ranks(details),
        "graphs": [graph_of(halt) for halt in story.halts],
        "evidence": {
            visible(who): visible(text[:MAX_EVIDENCE]) for who, text in result.evidence.items()
        },
        "story": story_as_json(story),
        "breaks": _breaks(story),
        "control": details.control,
        "differences": [] if calm is None else _differences(story, calm),
    }


def unfinished_data(run: Run, unfinished: Unfinished, stories: Stories) -> dict[str, Any]:
    """Return what the page tells of a scenario that has no verdict."""
    story = stories.of(unfinished.journal)
    open_ = [span for span in story.spans if span.end is None and span.kind != "load"]
    return {
        "name": visible(unfinished.name),
        "verdict": "unfinished",
        "sentence": visible(unfinished.reason),
        "proves": visible(unfinished.proves or story.proves),
        "journal": _relative(run, unfinished.journal),
        "graphs": [graph_of(halt) for halt in story.halts],
        "story": story_as_json(story),
        "breaks": _breaks(story),
        "open": [visible(f"{span.lane}: {span.kind} {span.name}") for span in open_[-MAX_OPEN:]],
    }


def control_data(journal: Path, stories: Stories) -> dict[str, Any]:
    """Return the story of a control run."""
    return story_as_json(stories.of(journal))


def control_journal(run: Run, control: str) -> Path:
    """Return where the journal of a control lies."""
    return run.folder / control / JOURNAL


def _relative(run: Run, journal: Path) -> str:
    """Return where a journal lies in the run's folder: the page may be read on another machine."""
    inside = journal.is_relative_to(run.folder)
    return visible(str(journal.relative_to(run.folder) if inside else journal))


def _control(run: Run, details: Details, stories: Stories) -> Story | None:
    if details.control is None or not os.path.exists(control_journal(run, details.control)):
        return None
    return stories.of(control_journal(run, details.control))


def _differences(story: Story, calm: Story) -> list[dict[str, Any]]:
    return [
        {
            "sentence": visible(each.sentence),
            "at": ticks(each.at, story),
            "calm": None if each.control_at is None else ticks(each.control_at, calm),
            "lane": each.lane,
        }
        for each in differences(story, calm)
    ]


def _attempts(story: Story, details: Details) -> list[dict[str, Any]]:
    closing = {push["number"] for push in details.pushes if push.get("closing")}
    return [
        {
            "push": each.push,
            "number": each.number,
            "closing": each.push in closing,
            "begin": ticks(each.begin, story),
            "end": ticks(each.end, story),
            "answers": {
                visible(request): {visible(lane): said for lane, said in of_engine.items()}
                for request, of_engine in each.answers.items()
            },
            "causes": [visible(cause) for cause in each.causes],
        }
        for each in attempts_of(story, details.pushes)[:MAX_ATTEMPTS]
    ]


def _ranks(details: Details) -> list[dict[str, Any]]:
    """Return how each push ended on every rank; ranks that ended alike are one row."""
    rows = []
    for push in details.pushes:
        alike: dict[tuple[str, ...], list[str]] = {}
        for rank, seen in push.get("ranks", {}).items():
            alike.setdefault(_ending(seen), []).append(rank)
        for (ending, version, error), ranks in alike.items():
            rows.append(
                {
                    "push": f"{push['number']}{' (closing)' if push.get('closing') else ''}",
                    "outcome": push.get("outcome", ""),
                    "ranks": ", ".join(ranks),
                    "ending": ending,
                    "version": visible(version),
                    "error": visible(error),
                }
            )
    return rows


def _ending(seen: Mapping[str, Any]) -> tuple[str, str, str]:
    ending = str(seen.get("ending", ""))
    if seen.get("struck"):
        ending += ", by the fault"
    kind = str(seen.get("error_type") or "")
    error = f"{kind}: {seen.get('error', '')}" if kind else str(seen.get("error", ""))
    return ending, str(seen.get("version") or ""), error


def _breaks(story: Story) -> list[str]:
    more = story.num_breaks - len(story.breaks)
    told = [visible(each) for each in story.breaks]
    return [*told, f"and {more} more"] if more > 0 else told
