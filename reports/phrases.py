"""What the reports have in common: results in short phrases, foreign text made safe to show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import groupby

from harness.contracts import CheckResult, EngineFinal, ScenarioResult, Verdict

# A terminal obeys control characters, and XML 1.0 forbids most of them, lone surrogates and the
# two non-characters. Line feeds and tabs are text.
_UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

_GRAPH = "wait-for graph"  # its place among a hang's evidence, as ``harness.watch`` has it


def visible(text: str) -> str:
    r"""Return ``text`` with the characters that XML or a terminal would choke on spelled out.

    ESC becomes ``\x1b``, NUL ``\x00``, a lone surrogate ``\udc9b``: engines print anything.
    """
    if text.isascii() and text.isprintable():
        return text
    return _UNSHOWABLE.sub(_spelled, text)


def without_cell(name: str) -> str:
    """Return a scenario's name without its matrix cell: that of the file it comes from."""
    return name.partition("[")[0]


def folder(name: str) -> str:
    """Return the folder in a scenario's name: ``session`` of ``session/fails[engine.update]``."""
    return without_cell(name).rpartition("/")[0]


def cell(name: str) -> str:
    """Return the matrix cell in a scenario's name, without brackets; empty without a matrix."""
    return name.partition("[")[2].removesuffix("]")


def failed_checks(result: ScenarioResult) -> list[CheckResult]:
    """Return the checks that decided against the scenario: those not met and not waived."""
    return [check for check in result.checks if not check.ok and check.waived is None]


def proof(result: ScenarioResult) -> str:
    """Return the table that proves why a push was halted: lines in columns, some below indented.

    Empty for a scenario that was not halted.
    """
    return result.evidence.get(_GRAPH, "").partition("\n\n")[2]  # the sentence stands before it


def outcomes(result: ScenarioResult) -> str:
    """Return the outcome of each push: ``resumed``, or ``raised, 3 x resumed``."""
    runs = ((len(list(same)), outcome) for outcome, same in groupby(result.outcomes))
    return ", ".join(_counted(count, outcome) for count, outcome in runs) or "-"


def attempts(result: ScenarioResult) -> str:
    """Return the attempts of each push: ``2``, or ``2, 1, 1``."""
    return ", ".join(str(each) for each in result.attempts) or "-"


def engine(final: EngineFinal) -> str:
    """Return one engine's version and generation state: ``"1" running``, or ``dead``."""
    if final.version is None:  # it does not answer
        return final.generation
    return f'"{visible(final.version)}" {final.generation}'


def engines(finals: Sequence[EngineFinal]) -> str:
    """Return the final state of all engines, equal ones counted: ``2 x "1" running``."""
    counts: dict[str, int] = {}
    for final in finals:
        counts[engine(final)] = counts.get(engine(final), 0) + 1
    return ", ".join(_counted(count, phrase) for phrase, count in counts.items()) or "-"


def duration(seconds: float) -> str:
    """Return a time in three digits: ``0.21 s``, ``12.3 s``; six characters below 10000 s."""
    digits = 2 if seconds < 9.995 else 1 if seconds < 99.95 else 0
    return f"{seconds:.{digits}f} s"


def counts(results: Sequence[ScenarioResult]) -> dict[Verdict, int]:
    """Return how many results there are of each verdict, in the order of severity."""
    return {each: sum(result.verdict is each for result in results) for each in Verdict}


def rerun_command(result: ScenarioResult, options: Sequence[str] = ()) -> str:
    """Return the shell command that runs this one scenario again.

    Args:
        result: the scenario.
        options: what the run was given besides the selection, such as ``--target``.
    """
    words = ["resync-chaos", "run", result.path, "-k", result.name, *options]
    return shlex.join(words)


def _counted(count: int, phrase: str) -> str:
    return phrase if count == 1 else f"{count} x {phrase}"


def _spelled(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
