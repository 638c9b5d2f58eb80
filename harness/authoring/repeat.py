"""``run --repeat N``: every scenario so many times, and how many of them passed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.contracts import Display, Parts, ScenarioResult, Verdict
from harness.launcher import Launcher
from harness.scenario import Scenario
from harness.suite import Suite


class Rounds:
    """The rounds of a run.

    Args:
        times: how many; the first leaves its files where a run of one does.
        out_dir: of the run.
    """

    def __init__(self, times: int, out_dir: Path) -> None:
        self._times = times
        self._out_dir = out_dir
        self._begun: list[dict[str, ScenarioResult]] = []

    async def run(
        self,
        launcher: Launcher,
        parts: Parts,
        scenarios: Sequence[Scenario],
        *,
        jobs: int,
        display: Display,
    ) -> None:
        """Run every round, one after the other.

        Raises:
            LauncherError: no more processes can be started.
        """
        for number in range(1, self._times + 1):
            results: dict[str, ScenarioResult] = {}
            self._begun.append(results)
            out_dir = self._out_dir / f"repeat-{number}" if number > 1 else self._out_dir
            suite = Suite(
                launcher, parts, out_dir=out_dir, jobs=jobs, display=display, results=results
            )
            await suite.run(scenarios)

    def worst(self) -> dict[str, ScenarioResult]:
        """Return each scenario's worst result, the first of equals: a flaky one is not green."""
        worst: dict[str, ScenarioResult] = {}
        for results in self._begun:
            for name, result in results.items():
                known = worst.get(name)
                if known is None or result.verdict.exit_code > known.verdict.exit_code:
                    worst[name] = result
        return worst

    def lines(self, names: Sequence[str]) -> Iterator[str]:
        """Yield ``k of n pass  name`` for each scenario, the flaky and the broken ones last."""
        if self._times == 1:
            return
        ended = {
            name: [results[name].verdict for results in self._begun if name in results]
            for name in names
        }
        width = 2 * len(str(self._times)) + len(" of  pass")
        for name in sorted(ended, key=lambda each: (_others(ended[each]) != "", each)):
            verdicts = ended[name]
            passed = verdicts.count(Verdict.PASS)
            counted = f"{passed} of {len(verdicts)} pass"
            yield f"{counted:<{width}}  {name}{_others(verdicts)}"


def _others(verdicts: Sequence[Verdict]) -> str:
    """Return how the rounds that did not pass ended: ``  (2 fail, 1 hang)``."""
    counts = {each: verdicts.count(each) for each in Verdict if each is not Verdict.PASS}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    return f"  ({told})" if told else ""
