"""One agreed step of a push: run it, say how it went, learn how it went everywhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from resync.agreement import Agreement, Code, Decision
from resync.errors import Cause, RankMustLeave, describe
from resync.report import PushReport

logger = logging.getLogger("resync")

Work = Callable[[], Code | None]


class Steps:
    """Runs the steps of one push on one rank.

    Args:
        agreement: of all ranks.
        rank: this rank.
        sends: whether this rank controls engines.
        report: receives the seconds of each step.
    """

    def __init__(self, agreement: Agreement, *, rank: int, sends: bool, report: PushReport) -> None:
        self._agreement = agreement
        self._rank = rank
        self._sends = sends
        self._report = report

    def on_senders(self, step: str, work: Work) -> Decision:
        """Run a step on the ranks that control engines; the others wait for its outcome."""
        return self.on_every_rank(step, work if self._sends else _nothing_to_do)

    def on_every_rank(self, step: str, work: Work) -> Decision:
        """Run a step and agree on its outcome; an exception of it is a cause, not raised.

        Raises:
            RankMustLeave: the work left collectives on this rank that the others wait in, so they
                cannot come to an agreement; or the agreement failed.
        """
        begun_s = time.monotonic()
        code, causes = Code.OK, []
        try:
            code = work() or Code.OK
        except RankMustLeave:
            raise
        except Exception as error:
            code, causes = Code.FAILED, Cause.of(error, rank=self._rank, step=step)
            logger.debug("step %s failed", step, exc_info=True)
        decision = self._agreement.settle(step, code, causes)
        seconds = time.monotonic() - begun_s
        self._report.seconds[step] = self._report.seconds.get(step, 0.0) + seconds
        self._log(step, decision, seconds)
        return decision

    def _log(self, step: str, decision: Decision, seconds: float) -> None:
        if self._rank != 0:
            return
        about = (self._report.version, max(1, len(self._report.attempts)), step)
        if decision.ok:
            logger.info("push %s, attempt %d: %s ok in %.3f s", *about, seconds)
        else:
            logger.warning(
                "push %s, attempt %d: %s failed after %.3f s: %s",
                *about, seconds, describe(decision.causes),
            )  # fmt: skip


def _nothing_to_do() -> None:
    """What the other ranks do in a step of the senders."""
