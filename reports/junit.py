"""``junit.xml``: one test case per scenario, under names that stay the same from run to run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

from harness.contracts import ScenarioResult, Verdict
from reports import phrases
from reports.phrases import visible

# JUnit knows two ways not to pass: the code is wrong, or the test could not judge it.
TAGS = {Verdict.FAIL: "failure", Verdict.HANG: "failure", Verdict.INVALID: "error"}


def write(results: Sequence[ScenarioResult], out_dir: Path) -> Path:
    """Write ``junit.xml`` into ``out_dir``, which is made if needed, and return its path.

    One suite per folder of scenarios, sorted by name. Times are seconds with the control run and
    the closing push, what a scenario costs a CI job. Characters that XML 1.0 forbids are spelled
    out (``\\x1b``).

    Raises:
        OSError: ``out_dir`` is not writable.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    root = Element("testsuites", name="resync-chaos")
    _count(root, results)
    in_order = sorted(results, key=lambda each: (_classname(each), each.name))
    for classname, group in groupby(in_order, key=_classname):
        members = list(group)
        suite = SubElement(root, "testsuite", name=classname)
        _count(suite, members)
        for result in members:
            _add_case(suite, result)
    indent(root)
    root.tail = "\n"
    path = out_dir / "junit.xml"
    ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    return path


def _classname(result: ScenarioResult) -> str:
    parts = ["scenarios", *phrases.folder(result.name).split("/")]
    return ".".join(visible(part) for part in parts if part)


def _count(element: Element, results: Sequence[ScenarioResult]) -> None:
    tags = [TAGS.get(result.verdict) for result in results]
    element.set("tests", str(len(results)))
    element.set("failures", str(tags.count("failure")))
    element.set("errors", str(tags.count("error")))
    element.set("time", f"{sum(result.total_seconds for result in results):.3f}")


def _add_case(suite: Element, result: ScenarioResult) -> None:
    name = result.name.removeprefix(f"{phrases.folder(result.name)}/")
    case = SubElement(
        suite,
        "testcase",
        classname=_classname(result),
        name=visible(name),
        file=visible(result.path),
        time=f"{result.total_seconds:.3f}",
    )
    properties = SubElement(case, "properties")
    for key, value in _properties(result).items():
        SubElement(properties, "property", name=key, value=visible(value))
    if tag := TAGS.get(result.verdict):
        report = SubElement(case, tag, type=result.verdict.value, message=visible(result.sentence))
        report.text = visible(_what_failed(result))
    SubElement(case, "system-out").text = visible(_what_was_seen(result))


def _properties(result: ScenarioResult) -> dict[str, str]:
    versions = ("none" if each.version is None else each.version for each in result.engines)
    return {
        "verdict": result.verdict.value,
        "outcomes": ",".join(result.outcomes),
        "attempts": ",".join(str(each) for each in result.attempts),
        "versions": ",".join(versions),
        "scenario_seconds": f"{result.seconds:.3f}",
    }


def _what_failed(result: ScenarioResult) -> str:
    checks = [f"{check.name}: {check.detail}" for check in phrases.failed_checks(result)]
    return "\n".join([result.sentence, *checks])


def _what_was_seen(result: ScenarioResult) -> str:
    """Return the final states, the waived checks, the evidence and where the journal lies."""
    lines = [f"proves: {result.proves}", f"journal: {result.journal}"]
    lines += [f"run again: {phrases.rerun_command(result)}"]
    for final in result.engines:
        lines += [f"engine {final.index}: {phrases.engine(final)}, weights: {final.weights}"]
    for check in result.checks:
        if check.waived is not None:
            lines += [f"waived: {check.name}: {check.detail} Reason: {check.waived}"]
    for process, text in result.evidence.items():
        lines += ["", f"--- {process}", text.rstrip("\n")]
    return "\n".join(lines)
