"""How long a run will still take: from what its scenarios took earlier, and its pace so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

PRIOR_S = 5.0  # of earlier scenarios' time: how much the first of this run count for


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is known of a run before it begins.

    Attributes:
        jobs: scenarios at a time.
        limits_s: scenario -> how long one connect or push of it may take, in seconds.
        earlier_s: scenario -> how long it took in an earlier run, where there was one.
    """

    jobs: int = 1
    limits_s: Mapping[str, float] = field(default_factory=dict)
    earlier_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def usual_s(self) -> float:
        """What stands for a scenario of which nothing is known."""
        return fmean(self.earlier_s.values()) if self.earlier_s else 1.0


@dataclass
class Eta:
    """The time left of a run of ``total`` scenarios; grows with each that ends.

    Work is counted in the seconds of an earlier run. Without one every scenario is as much work as
    any other, and nothing is known before the first has ended.
    """

    plan: Plan
    total: int
    num_done: int = 0
    spent_s: float = 0.0  # by those that ended
    work_done: float = 0.0

    def add(self, name: str, seconds: float) -> None:
        """One has ended, after ``seconds``."""
        self.num_done += 1
        self.spent_s += seconds
        self.work_done += self._work(name)

    def left_s(self, running: Mapping[str, float], slots: int) -> float | None:
        """Return the seconds left; ``None`` while there is nothing to tell them from.

        Args:
            running: scenario -> the seconds that it has been running.
            slots: scenarios at a time, as far as was seen.
        """
        left = self.total - self.num_done
        if left <= 0:
            return 0.0
        spent_s, prior_s = self.spent_s, PRIOR_S
        if not self.plan.earlier_s:
            if not self.num_done:
                return None
            # One that takes long counts from the begin, not when it ends.
            spent_s, prior_s = spent_s + sum(running.values()), 0.0
        pace = (spent_s + prior_s) / (self.work_done + prior_s)
        rest = {name: max(self._work(name) * pace - s, 0.0) for name, s in running.items()}
        not_begun = max(left - len(running), 0) * self._work_each(running) * pace
        shared_s = (sum(rest.values()) + not_begun) / max(min(slots, left), 1)
        return max(shared_s, *rest.values(), 0.0)

    def _work(self, name: str) -> float:
        return self.plan.earlier_s.get(name, self.plan.usual_s)

    def _work_each(self, running: Mapping[str, float]) -> float:
        """Return the mean work of those that have not begun."""
        left = self.total - self.num_done - len(running)
        if left <= 0:
            return 0.0
        known = self.total * self.plan.usual_s - self.work_done
        return max(known - sum(map(self._work, running)), 0.0) / left
