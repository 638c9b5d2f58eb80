"""Two runs compared: verdicts that changed, scenarios that came or went, and the slower ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from harness.contracts import ScenarioResult, Verdict
from harness.reporting.run_folder import Run
from reports import phrases
from reports.phrases import visible

FEW = 5  # scenarios: below that, the median ratio is that of the slow one itself
SHORT_S = 0.02  # a shorter time is measured as that: ratios of nothing mean nothing
UNFINISHED = "unfinished"
NOT_RUN = "not run"


@dataclass(frozen=True)
class Comparison:
    """How a run differs from an older one, in lines, the regressions first."""

    lines: tuple[str, ...]
    num_regressions: int


def compare_runs(old: Run, new: Run, *, slower_ratio: float, slower_s: float) -> Comparison:
    """Compare two runs by their scenarios' names.

    Args:
        slower_ratio: a scenario is slower if it takes more than so many times its old time, after
            both were divided by the median ratio of all: the machine's part in it.
        slower_s: and more than so many seconds longer.
    """
    before, after = _ends(old), _ends(new)
    worse, other = [], []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was == now:
            continue
        line = f"{visible(name)}: {was or 'not there'} -> {now or 'gone'}"
        if now is not None and _rank(now) > _rank(was or Verdict.PASS):
            worse.append(f"worse    {line}{_why(new, name)}")
        elif was is None:
            other.append(f"new      {line}")
        elif now is None:
            other.append(f"gone     {line}")
        else:
            other.append(f"better   {line}")
    speed, slower = _speed(old, new, slower_ratio, slower_s)
    counted = f"{len(before)} scenarios before, {len(after)} now; {speed}"
    num = len(worse) + len(slower)
    closing = f"{num} regressions" if num != 1 else "1 regression"
    lines = [*worse, *slower, *other, counted, closing if num else "no regressions"]
    return Comparison(tuple(lines), num)


def _ends(run: Run) -> dict[str, str]:
    return {
        **dict.fromkeys(run.not_run, NOT_RUN),
        **{each.name: UNFINISHED for each in run.unfinished},
        **{result.name: result.verdict.value for result in run.results},
    }


def _rank(end: str) -> int:
    """Return how bad an end is; one that is not there says nothing, and is as good as a pass."""
    order = (Verdict.PASS, NOT_RUN, Verdict.FAIL, Verdict.HANG, Verdict.INVALID, UNFINISHED)
    return order.index(end)


def _why(run: Run, name: str) -> str:
    for result in run.results:
        if result.name == name and result.verdict is not Verdict.PASS:
            return f"; {visible(result.sentence)}"
    return ""


def _speed(old: Run, new: Run, slower_ratio: float, slower_s: float) -> tuple[str, list[str]]:
    """Return what is said of the machine, and a line per scenario that got slower than it."""
    pairs = {
        name: (max(was.seconds, SHORT_S), max(now.seconds, SHORT_S))
        for name, was, now in _both_passed(old, new)
    }
    machine = 1.0
    if len(pairs) >= FEW:
        machine = median(now / was for was, now in pairs.values())
    slower = []
    for name, (was, now) in pairs.items():
        expected = was * machine
        if now > expected * slower_ratio and now - expected > slower_s:
            times = f"{phrases.duration(was)} -> {phrases.duration(now)}"
            slower.append(f"slower   {visible(name)}: {times}, {now / expected:.1f} times as long")
    return f"times are {machine:.2f} of before, in the median of {len(pairs)}", slower


def _both_passed(old: Run, new: Run) -> Iterator[tuple[str, ScenarioResult, ScenarioResult]]:
    before: Mapping[str, ScenarioResult] = {result.name: result for result in old.results}
    for now in new.results:
        was = before.get(now.name)
        if was is not None and was.verdict is now.verdict is Verdict.PASS:
            yield now.name, was, now
