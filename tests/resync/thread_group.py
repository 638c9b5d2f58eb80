"""Ranks as threads: a group that notices a deadlock, and an agreement on top of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from resync.agreement import Agreement, Code, Decision
from resync.errors import Cause
from resync.observer import Observer


class ThreadGroup:
    """The collectives of ``size`` ranks, one thread each.

    Every collective has a name. Ranks that enter different ones would wait for each other for ever
    on a real group; here each of them raises at once.

    Args:
        size: number of ranks.
        limit_s: how long a rank waits for one that never comes.
    """

    def __init__(self, size: int, *, limit_s: float = 5.0) -> None:
        self.size = size
        self._limit_s = limit_s
        self._changed = threading.Condition()
        self._waiting: dict[int, tuple[str, Any]] = {}  # rank -> collective and value
        self._last: dict[int, tuple[str, Any]] = {}
        self._num_met = 0
        self._broken = False

    def meet(self, rank: int, name: str, value: Any = None) -> list[Any]:
        """Enter a collective and return the values of all ranks.

        Raises:
            RuntimeError: the ranks are in different collectives, or one has left or never comes.
        """
        with self._changed:
            number = self._num_met
            self._waiting[rank] = (name, value)
            if len(self._waiting) == self.size and not self._broken:
                self._last, self._waiting = self._waiting, {}
                self._num_met += 1
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._num_met > number or self._broken, self._limit_s)
            if self._num_met == number:
                raise RuntimeError(f"{name}: connection closed by peer")
            entered = [self._last[each] for each in range(self.size)]
        if len({name for name, _ in entered}) > 1:
            raise RuntimeError(f"deadlock: ranks are in {[name for name, _ in entered]}")
        return [value for _, value in entered]

    def leave(self) -> None:
        """End the group, as a rank that dies does: the others raise."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()


class ThreadAgreement(Agreement):
    """The real agreement's interface and error handling over a `ThreadGroup`."""

    def __init__(self, group: ThreadGroup, rank: int, observe: Observer) -> None:
        self._observe = observe
        self._threads = group
        self._rank = rank
        self.steps: list[str] = []
        self.closed = False

    def settle(self, step: str, code: Code = Code.OK, causes: Sequence[Cause] = ()) -> Decision:
        """Keep the step's name, for the order of the steps."""
        self.steps.append(step)
        return super().settle(step, code, causes)

    def _settle(self, code: Code, causes: Sequence[Cause]) -> Decision:
        name = f"agree {self.steps[-1]}"
        votes = self._threads.meet(self._rank, name, (code, tuple(causes)))
        agreed = min(vote for vote, _ in votes)
        if agreed is not Code.FAILED:
            return Decision(agreed)
        return Decision(agreed, tuple(cause for _, said in votes for cause in said))

    def same_everywhere(self, value: int) -> bool:
        """Compare a number over all ranks."""
        return len(set(self._threads.meet(self._rank, "same everywhere", value))) == 1

    def close(self) -> None:
        """Take part no longer."""
        self.closed = True
