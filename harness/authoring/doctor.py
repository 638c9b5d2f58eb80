"""``resync-chaos doctor``: which time-out of a training job fires first in each wait of a push."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Iterator, Sequence

from harness.authoring.job_limits import JobLimits, read_job
from harness.authoring.push_waits import FINE, NEVER, Wait, waits_of

EXIT_FIRES_TOO_EARLY = 10
WIDTH = 100
SUPERVISOR = ("health_interval", "health_timeout")


def doctor(options: argparse.Namespace) -> int:
    """Print the job's time-outs and the waits of a push; return 10 where one ends too early.

    Raises:
        UsageError: the job cannot be read, or one of its time-outs is no number.
    """
    job = read_job(options)
    waits = waits_of(job)
    print("\n".join(_report(job, waits)))
    return 0 if all(wait.verdict == FINE for wait in waits) else EXIT_FIRES_TOO_EARLY


def _report(job: JobLimits, waits: Sequence[Wait]) -> Iterator[str]:
    yield "time-outs of the job"
    told = [
        limit for name, limit in job.limits.items() if job.is_supervised or name not in SUPERVISOR
    ]
    width = max(len(limit.known.what) for limit in told)
    for limit in told:
        yield f"  {limit.known.what:<{width}}  {_seconds(limit.seconds):>8}  {limit.origin}"
    where = "shared GPUs (--colocate): IPC" if job.is_colocated else "separate GPUs: NCCL"
    yield f"  {'how weights travel':<{width}}  {where}"
    yield ""
    yield "what ends each wait of a push first"
    for number, wait in enumerate(waits, start=1):
        yield from _wait(number, wait)
    wrong = [str(number) for number, wait in enumerate(waits, start=1) if wait.verdict != FINE]
    yield ""
    if wrong:
        yield f"{len(wrong)} of {len(waits)} waits end wrongly: {', '.join(wrong)}"
    else:
        yield f"all {len(waits)} waits end in the right order"


def _wait(number: int, wait: Wait) -> Iterator[str]:
    yield ""
    yield from _wrapped(f"{number}. ", f"{wait.verdict}: {wait.who}")
    first, *later = wait.in_order
    if wait.verdict == NEVER:
        yield from _wrapped("   ends        ", "never: nothing bounds it")
    else:
        yield from _wrapped("   ends        ", f"after {_seconds(first.seconds)}, by {first.what}")
    for timer in later:
        seconds = _seconds(timer.seconds)
        yield from _wrapped("   not by      ", f"{timer.what}: {seconds}")
    yield from _wrapped("   looks like  ", first.looks_like)
    if wait.verdict != FINE:
        yield from _wrapped("   change      ", wait.change)


def _wrapped(label: str, text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text,
        WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _seconds(seconds: float) -> str:
    return "none" if math.isinf(seconds) else f"{seconds:g} s"
