"""What a test that did not pass prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.authoring import words
from harness.contracts import ScenarioResult
from harness.errors import HarnessError, LauncherError
from harness.scenario import Scenario
from reports import phrases
from reports.table import FULL_EVIDENCE

LABEL = 10  # columns of the words that begin a line


class ScenarioDidNotPass(Exception):
    """A scenario's verdict is ``fail``, ``hang`` or ``invalid``.

    Args:
        rerun_options: what the command that runs it again needs besides the selection.
    """

    def __init__(
        self, scenario: Scenario, result: ScenarioResult, rerun_options: Sequence[str]
    ) -> None:
        super().__init__(f"{result.verdict.value}: {result.sentence}")
        self.scenario = scenario
        self.result = result
        self.rerun_options = rerun_options


class CutOff(HarnessError):
    """A scenario ran into the time-out of its test."""


def words_of(error: BaseException) -> str:
    """Return what the user is to read of an error."""
    if isinstance(error, ScenarioDidNotPass):
        return "\n".join(_lines(error))
    if isinstance(error, HarnessError | LauncherError):
        return str(error)
    return (
        f"the harness itself failed: {type(error).__name__}: {error}. Run with --full-trace to see "
        "where, and report it."
    )


def _lines(error: ScenarioDidNotPass) -> Iterator[str]:
    result = error.result
    yield phrases.visible(f"{result.verdict.value}: {result.sentence}")
    yield ""
    yield _line("proves", result.proves)
    label = "story"
    for told in words.stories(error.scenario) or ["Nothing is done to this run."]:
        yield _line(label, told)
        label = ""
    label = "proof"
    for row in phrases.proof(result).splitlines():
        yield _line(label, row)
        label = ""
    for check in phrases.failed_checks(result):
        yield _line("check", f"{check.name}: {check.detail}")
    for final in result.engines:
        yield _line(f"engine {final.index}", f"{phrases.engine(final)}, weights: {final.weights}")
    if result.evidence:  # every stack, which would fill the screen
        yield _line("evidence", str(result.journal.with_name(FULL_EVIDENCE)))
    yield _line("journal", str(result.journal))
    yield _line("run again", phrases.rerun_command(result, error.rerun_options))


def _line(label: str, text: str) -> str:
    return f"  {label:<{LABEL}} {phrases.visible(text)}"
