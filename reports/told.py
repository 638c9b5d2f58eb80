"""One scenario's story as text: verdict, proof, what happened when, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent

from harness.contracts import ScenarioResult, Verdict
from harness.reporting.result_file import Details
from harness.reporting.run_folder import JOURNAL, Run, Unfinished
from reports import phrases, scenario_facts
from reports.attempts import attempts_of
from reports.first_difference import differences
from reports.phrases import visible
from reports.stories import Stories
from reports.story import Span, Story

MAX_EVENTS = 400
MAX_LINE = 400
SHOWN = ("push", "request", "call", "data", "step", "gather", "barrier", "command")


def tell_scenario(run: Run, stories: Stories) -> Iterator[str]:
    """Yield the lines of the story of the run's only scenario."""
    for each in run.unfinished:
        yield from _unfinished(each, stories.of(each.journal))
    for result in run.results:
        details = run.details.get(result.name, Details())
        story = stories.of(result.journal)
        yield f"{result.verdict.value}  {visible(result.name)}"
        yield f"  {_line(result.sentence)}"
        if result.sentence != result.proves:
            yield f"  proves: {_line(result.proves)}"
        yield f"  again: {visible(phrases.rerun_command(result, run.info.rerun_options))}"
        for key, value in scenario_facts.setting(details):
            yield f"  {key}: {_line(value)}"
        yield ""
        yield from _events(story)
        yield from _states(story)
        yield from _difference(run, result, details, story, stories)
        yield from _attempts(story, details)
        yield from _engines(result, details, story)
        yield from _checks(result)
        yield from _proof(result)


def _unfinished(each: Unfinished, story: Story) -> Iterator[str]:
    yield f"unfinished  {visible(each.name)}"
    yield f"  {_line(each.reason)}"
    yield f"  proves: {_line(each.proves or story.proves)}"
    yield ""
    yield from _events(story)
    yield from _states(story)
    yield "not ended when the journal stops:"
    for span in story.spans:
        if span.end is None and span.kind != "load":
            yield f"  {_described(span)}"


def _events(story: Story) -> Iterator[str]:
    """Yield what an engineer would tell: faults, failures, versions, stalls, ends of pushes."""
    yield "what happened (seconds since the start)"
    found = [(mark.at, mark.lane, f"{mark.kind}: {mark.text}") for mark in story.marks]
    for span in story.spans:
        if span.kind == "push":
            found.append((span.begin, span.lane, f"{span.name} begins"))
            if span.end is not None:
                found.append((span.end, span.lane, f"{span.name} ends"))
        elif span.kind in SHOWN and (span.status or span.end is None):
            at = story.end if span.end is None else span.end
            found.append((at, span.lane, _described(span)))
    found.sort(key=lambda event: event[0])
    for at, lane, text in found[:MAX_EVENTS]:
        yield f"  {at - story.begin:8.3f}  {visible(lane):<18} {_line(text)}"
    if len(found) > MAX_EVENTS:
        yield f"  and {len(found) - MAX_EVENTS} more"
    for said in story.breaks:
        yield f"  {_line(said)}"
    yield ""


def _states(story: Story) -> Iterator[str]:
    """Yield what every engine and worker was in, and from when to when."""
    if not story.bands:
        return
    yield "states (from, to)"
    place = {lane: number for number, lane in enumerate(story.lanes)}
    for band in sorted(story.bands, key=lambda each: (place[each.lane], each.begin))[:MAX_EVENTS]:
        begin = f"{band.begin - story.begin:8.3f}"
        end = "the end" if band.end is None else f"{band.end - story.begin:.3f}"
        label = f'serves version "{band.label}"' if band.kind == "version" else band.label
        yield f"  {begin} {end:>8}  {visible(band.lane):<18} {_line(label)}"
    if len(story.bands) > MAX_EVENTS:
        yield f"  and {len(story.bands) - MAX_EVENTS} more"
    yield ""


def _described(span: Span) -> str:
    to = f" to {span.to}" if span.to else ""
    return f"{span.kind} {span.name}{to}: {'never ended' if span.end is None else span.status}"


def _difference(
    run: Run, result: ScenarioResult, details: Details, story: Story, stories: Stories
) -> Iterator[str]:
    if details.control is None or result.verdict is Verdict.PASS:
        return
    calm = stories.of(run.folder / details.control / JOURNAL)
    if found := differences(story, calm):
        yield "where it left its control"
        for each in found:
            yield f"  {each.at - story.begin:8.3f}  {_line(each.sentence)}"
        yield ""


def _attempts(story: Story, details: Details) -> Iterator[str]:
    yield "attempts"
    for each in attempts_of(story, details.pushes):
        answers = []
        for request, of_engine in each.answers.items():
            said = dict.fromkeys(word for words in of_engine.values() for word in words)
            answers.append(f"{request} {'/'.join(said)}")
        took = phrases.duration(each.end - each.begin)
        yield f"  push {each.push}, attempt {each.number}, {took}: {_line(', '.join(answers))}"
        for cause in each.causes:
            yield f"      failed by {_line(cause)}"
    yield ""


def _engines(result: ScenarioResult, details: Details, story: Story) -> Iterator[str]:
    yield "engines after the last push"
    for card in scenario_facts.engine_cards(result, details, story):
        version = card["version"]
        shown = f'"{version}"' if version else "does not answer"
        words = [shown, card["generation"], f"weights {card['weights']}"]
        if card["sessions"]:
            words.append(f"sessions {', '.join(card['sessions'])}")
        if card["checksum"] and card["trainer"]:
            same = card["checksum"] == card["trainer"]["checksum"]
            words.append(
                f"checksum {'that' if same else 'not that'} of push {card['trainer']['push']}"
            )
        yield f"  engine {card['index']}: {', '.join(words)}"
        for push, served, weights, tokens in card["served"]:
            yield f'      served {tokens} tokens in push {push} as "{served}" from {weights}'
    yield ""


def _checks(result: ScenarioResult) -> Iterator[str]:
    yield "expected and found"
    for row in scenario_facts.check_rows(result):
        if row["state"] == "met":
            continue
        wanted, found = _line(row["expected"]), _line(row["found"])
        yield f"  {row['state']:<7} {row['name']}: expected {wanted}, found {found}"
    met = sum(check.ok for check in result.checks)
    yield f"  {met} of {len(result.checks)} met"


def _proof(result: ScenarioResult) -> Iterator[str]:
    for who, text in result.evidence.items():
        yield ""
        yield f"--- {visible(who)}"
        yield indent(visible(text.rstrip("\n")), "  ")


def _line(text: str) -> str:
    shown = " ".join(visible(text).split())
    return shown if len(shown) <= MAX_LINE else f"{shown[: MAX_LINE - 1]}…"
