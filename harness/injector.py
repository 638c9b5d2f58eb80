"""Decides, inside one process, whether a fault of the scenario strikes here and now."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from harness.contracts import Json, Recorder
from harness.errors import InjectionError
from harness.fault_points import FAULT_POINTS
from harness.faults import FAULTS
from harness.faults.kind import FaultKind

_PATTERNS = ("tensor", "name")  # selectors that are globs; the others must be equal


class ScenarioInjector:
    """The faults that are addressed to one process, and how often each point has been visited.

    Args:
        faults: JSON as `harness.scenario.Scenario.faults_for` gives it: only this process's.
        role: ``engine`` (which also reaches the points of its workers) or ``rank``.
        index: the engine's or the rank's number.
        record: the run's journal.
        push: the push that this process starts in; 0 is the connect before the first push.

    Raises:
        InjectionError: a fault is addressed to another process, or names an unknown kind.

    A fault counts the visits that match all its selectors, per worker and per push, and strikes
    when that count is in its ``nth``. Where several faults match one visit, all count it and the
    first of the scenario strikes.
    """

    def __init__(
        self,
        faults: Sequence[Mapping[str, Json]],
        *,
        role: str,
        index: int,
        record: Recorder,
        push: int = 0,
    ) -> None:
        roles = ("engine", "worker") if role == "engine" else (role,)
        self._armed = [_ArmedFault(fault, roles=roles, index=index) for fault in faults]
        self._roles = roles
        self._record = record
        self._push = push
        self._disarmed = False
        self._lock = threading.Lock()

    def begin_push(self, number: int) -> None:
        """Count afresh for push ``number``. Naming the push that is under way changes nothing."""
        with self._lock:
            if number != self._push:
                self._push = number
                for armed in self._armed:
                    armed.visits.clear()

    def disarm(self) -> None:
        """Let nothing strike any more; what already hangs stays as it is."""
        with self._lock:
            self._disarmed = True

    def pick(self, point: str, /, **where: Json) -> FaultKind | None:
        """Count this visit of ``point`` and return the fault that strikes it, or ``None``."""
        assert point in FAULT_POINTS, f"{point} is not listed in harness/fault_points.py"
        assert FAULT_POINTS[point].role in self._roles, f"{point} reached in a {self._roles[0]}"
        with self._lock:
            if self._disarmed:
                return None
            striking: tuple[_ArmedFault, int] | None = None
            for armed in self._armed:
                if armed.matches(point, self._push, where):
                    count = armed.count_visit(where)
                    if striking is None and armed.strikes_at(count):
                        striking = armed, count
            push = self._push
        if striking is None:
            return None
        armed, count = striking
        self._record(
            "fault",
            fault=armed.number,
            kind=armed.behaviour.kind,
            label=armed.behaviour.label(),
            at=point,
            count=count,
            push=push,
            where=where,
        )
        return armed.behaviour

    def reach(self, point: str, /, **where: Json) -> None:
        """`pick`, then let the fault act in this thread: it may sleep, block, raise or kill."""
        fault = self.pick(point, **where)
        if fault is not None:
            fault.in_thread(where)


class _ArmedFault:
    """One fault of the scenario in this process: where it strikes, how often it was passed."""

    def __init__(self, fault: Mapping[str, Json], *, roles: Sequence[str], index: int) -> None:
        self.number: int = fault["fault"]
        self.visits: Counter[Json] = Counter()  # worker (None on a rank or a front end) -> visits
        self._at: str = fault["at"]
        self._push: int = fault["push"]
        self._nth: Sequence[int] | str = fault["nth"]
        self._selectors: Mapping[str, Json] = fault["where"]
        if fault["kind"] not in FAULTS:
            raise InjectionError(
                f"fault {self.number}: expected a kind of {', '.join(FAULTS)}, "
                f"found {fault['kind']!r}. List new kinds in harness/faults/__init__.py."
            )
        address = fault["index"]
        if FAULT_POINTS[self._at].role not in roles or address not in ("all", index):
            raise InjectionError(
                f"fault {self.number}: expected one for {roles[0]} {index}, "
                f"found {self._at} on {address}. Give a process only its own faults."
            )
        behaviour = FAULTS[fault["kind"]].model_validate(fault["options"])
        self.behaviour: FaultKind = behaviour.seeded(fault.get("seed", ""))

    def matches(self, point: str, push: int, where: Mapping[str, Json]) -> bool:
        """Whether this visit is one that the fault counts."""
        if point != self._at or push != self._push:
            return False
        return all(
            fnmatchcase(str(where[key]), wanted) if key in _PATTERNS else where[key] == wanted
            for key, wanted in self._selectors.items()
        )

    def count_visit(self, where: Mapping[str, Json]) -> int:
        """Count one visit and return its number within this push and worker, from 1."""
        worker = where.get("worker")
        self.visits[worker] += 1
        return self.visits[worker]

    def strikes_at(self, count: int) -> bool:
        """Whether visit number ``count`` is one of those that the scenario names."""
        return self._nth == "always" or count in self._nth
