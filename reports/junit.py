"""``junit.xml``: one test case per scenario, under names that stay the same from run to run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

from harness.contracts import ScenarioResult, Verdict
from harness.reporting.run_folder import Run, Unfinished
from reports import phrases
from reports.phrases import visible
from reports.stories import Stories

# JUnit knows two ways not to pass: the code is wrong, or the test could not judge it.
TAGS = {Verdict.FAIL: "failure", Verdict.HANG: "failure", Verdict.INVALID: "error"}
MAX_EVIDENCE = 200_000  # characters of one process's stacks
MAX_OPEN = 50


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One test case, in JUnit's words. ``tag`` is ``failure``, ``error``, ``skipped`` or empty."""

    name: str
    seconds: float = 0.0
    tag: str = ""
    kind: str = ""
    message: str = ""
    text: str = ""
    output: str = ""
    properties: Sequence[tuple[str, str]] = ()

    @property
    def classname(self) -> str:
        parts = ["scenarios", *phrases.folder(self.name).split("/")]
        return ".".join(visible(part) for part in parts if part)


def write(run: Run, stories: Stories, out_dir: Path) -> Path:
    """Write ``junit.xml`` into ``out_dir``, which is made if needed, and return its path.

    One suite per folder of scenarios, sorted by name. Times are seconds with the control run and
    the closing push, what a scenario costs a CI job. A scenario that was running when the run died
    is an error, one that had not started is skipped. Characters that XML 1.0 forbids are spelled
    out (``\\x1b``).

    Raises:
        OSError: ``out_dir`` is not writable.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    cases = [
        *(_judged(result, run.info.rerun_options) for result in run.results),
        *(_unfinished(each, stories) for each in run.unfinished),
        *(_not_run(name) for name in run.not_run),
    ]
    root = Element("testsuites", name="resync-chaos")
    _count(root, cases)
    for classname, group in groupby(
        sorted(cases, key=lambda each: (each.classname, each.name)), key=lambda each: each.classname
    ):
        members = list(group)
        suite = SubElement(root, "testsuite", name=classname)
        _count(suite, members)
        _add_properties(suite, [(k, v) for k, v in run.info.versions.items()])
        for case in members:
            _add_case(suite, case)
    indent(root)
    root.tail = "\n"
    path = out_dir / "junit.xml"
    ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    return path


def _count(element: Element, cases: Sequence[_Case]) -> None:
    tags = [case.tag for case in cases]
    element.set("tests", str(len(cases)))
    element.set("failures", str(tags.count("failure")))
    element.set("errors", str(tags.count("error")))
    if element.tag == "testsuite":
        element.set("skipped", str(tags.count("skipped")))
    element.set("time", f"{sum(case.seconds for case in cases):.3f}")


def _add_case(suite: Element, case: _Case) -> None:
    name = case.name.removeprefix(f"{phrases.folder(case.name)}/")
    element = SubElement(
        suite,
        "testcase",
        classname=case.classname,
        name=visible(name),
        time=f"{case.seconds:.3f}",
    )
    _add_properties(element, case.properties)
    if case.tag:
        report = SubElement(element, case.tag, type=case.kind, message=visible(case.message))
        report.text = visible(case.text)
    if case.output:
        SubElement(element, "system-out").text = visible(case.output)


def _add_properties(element: Element, pairs: Iterable[tuple[str, str]]) -> None:
    pairs = list(pairs)
    if pairs:
        properties = SubElement(element, "properties")
        for key, value in pairs:
            SubElement(properties, "property", name=visible(key), value=visible(value))


def _judged(result: ScenarioResult, options: Sequence[str]) -> _Case:
    versions = ("none" if each.version is None else each.version for each in result.engines)
    return _Case(
        name=result.name,
        seconds=result.total_seconds,
        tag=TAGS.get(result.verdict, ""),
        kind=result.verdict.value,
        message=result.sentence,
        text=_what_failed(result),
        output=_what_was_seen(result, options),
        properties=(
            ("file", result.path),
            ("verdict", result.verdict.value),
            ("outcomes", ",".join(result.outcomes)),
            ("attempts", ",".join(str(each) for each in result.attempts)),
            ("versions", ",".join(versions)),
            ("scenario_seconds", f"{result.seconds:.3f}"),
        ),
    )


def _unfinished(each: Unfinished, stories: Stories) -> _Case:
    story = stories.of(each.journal)
    open_ = [span for span in story.spans if span.end is None and span.kind != "load"]
    lines = [f"proves: {each.proves}", f"journal: {each.journal}", *story.breaks]
    lines += [f"not ended: {s.lane}: {s.kind} {s.name}" for s in open_[-MAX_OPEN:]]
    return _Case(
        name=each.name,
        seconds=story.end - story.begin,
        tag="error",
        kind="unfinished",
        message=each.reason,
        text=each.reason,
        output="\n".join(lines),
        properties=(("file", each.path), ("verdict", "unfinished")),
    )


def _not_run(name: str) -> _Case:
    return _Case(name=name, tag="skipped", kind="not run", message="the run ended before it began")


def _what_failed(result: ScenarioResult) -> str:
    checks = [f"{check.name}: {check.detail}" for check in phrases.failed_checks(result)]
    return "\n".join([result.sentence, *checks])


def _what_was_seen(result: ScenarioResult, options: Sequence[str]) -> str:
    """Return the final states, the waived checks, the evidence and where the journal lies."""
    lines = [f"proves: {result.proves}", f"journal: {result.journal}"]
    lines += [f"run again: {phrases.rerun_command(result, options)}"]
    for final in result.engines:
        lines += [f"engine {final.index}: {phrases.engine(final)}, weights: {final.weights}"]
    for check in result.checks:
        if check.waived is not None:
            lines += [f"waived: {check.name}: {check.detail} Reason: {check.waived}"]
    for process, text in result.evidence.items():
        lines += ["", f"--- {process}", text[:MAX_EVIDENCE].rstrip("\n")]
    return "\n".join(lines)
