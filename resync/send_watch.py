"""Brings the sender back from a broadcast that no request bounds.

While ``update`` is out, its time-out bounds the sender's broadcasts: when it fails, the sender's
end of the channel is dropped. Once every engine has answered it, nothing does: an engine that said
yes to tensors that it did not receive leaves the sender in its broadcast, or in the synchronisation
after ``finish``, for ever, and every other rank in the next agreement. Hence a timer from each such
answer to the sender's next step.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial

from resync.errors import ChannelError
from resync.observer import Observer, unobserved

logger = logging.getLogger("resync")

STEP = "broadcasts"  # what the observer hears


class SendWatch:
    """One sender's timer. Armed on the thread that a request was made on, and disarmed on any.

    Args:
        limit_s: how long the sender may take from an answer to its next step, in seconds.
        settle_s: how long it may take to gather another tensor, or to come back, after its channel
            was dropped.
        bring_back: drops the sender's end of the channel, for the reason that it is given; called
            on the timer's thread.
        progress: counts the tensors that the sender has gathered.
        observe: hears ``broadcasts`` before and after each wait.
    """

    def __init__(
        self,
        *,
        limit_s: float,
        settle_s: float,
        bring_back: Callable[[ChannelError], None],
        progress: Callable[[], int],
        observe: Observer = unobserved,
    ) -> None:
        self._limit_s = limit_s
        self._settle_s = settle_s
        self._bring_back = bring_back
        self._progress = progress
        self._observe = observe
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._sending = False

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Watch the sender inside; an answer that comes after it is nobody's."""
        with self._lock:
            self._sending = True
        try:
            yield
        finally:
            with self._lock:
                self._sending = False
            self.disarm()

    def arm(self, since: str) -> None:
        """Expect the sender's next step within the limit.

        Args:
            since: the request whose answers it follows, for the error.
        """
        self._begin(self._limit_s, partial(self._expired, since))

    def expect_back(self) -> None:
        """Its channel was dropped: say so if the sender's thread does not come back."""
        self._begin(self._settle_s, partial(self._gone, self._progress()))

    def disarm(self) -> None:
        """The sender has come on, or has failed: its thread is back."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self._observe(STEP, phase="end")

    def _begin(self, limit_s: float, then: Callable[[], None]) -> None:
        self.disarm()
        self._observe(STEP, phase="begin", limit_s=limit_s)
        with self._lock:
            if self._sending:
                self._timer = threading.Timer(limit_s, then)
                self._timer.daemon = True
                self._timer.start()
                return
        self._observe(STEP, phase="end")

    def _expired(self, since: str) -> None:
        # Whole under the lock: who disarms waits for it, and then sees the failure.
        with self._lock:
            if self._timer is not threading.current_thread():
                return  # disarmed at the same moment
            self._bring_back(
                ChannelError(
                    f"expected the sender's broadcasts to end within {self._limit_s:g} s after "
                    f"every engine had answered {since}, found it blocked in one: an engine said "
                    "yes to tensors that it did not receive. The sender's end of the channel was "
                    "dropped"
                )
            )

    def _gone(self, seen: int) -> None:
        with self._lock:
            if self._timer is not threading.current_thread():
                return
            gathered = self._progress()
            if gathered != seen:  # it is on its way through the rest of the pass
                self._begin(self._settle_s, partial(self._gone, gathered))
                return
        logger.critical(
            "the sender has gathered no tensor and not come back for %g s since its end of the "
            "channel was dropped: its thread is in a broadcast that nothing frees, or in a gather "
            "that does not end. If this lasts, end this process and restart the trainer",
            self._settle_s,
        )
