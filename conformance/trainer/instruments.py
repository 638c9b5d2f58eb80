"""Notes what a rank's main thread does with collectives and with calls in side threads.

It replaces names of torch's and of the standard library's for the whole process, so it is for a
process that does nothing else.
"""

from __future__ import annotations

import concurrent.futures
import itertools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from conformance.trainer.contract import Fault
from conformance.trainer.notes import Notes


def instrument(notes: Notes, fault: Fault, rank: int) -> None:
    """Have this process note every collective of its default group and every side call."""
    _instrument_collectives(notes, fault, rank)
    _instrument_side_calls(notes, fault)


def _instrument_collectives(notes: Notes, fault: Fault, rank: int) -> None:
    all_gather, barrier = dist.all_gather, dist.barrier

    def noted_all_gather(parts: list[torch.Tensor], own: torch.Tensor, **options: Any) -> Any:
        what = f"all_gather {str(own.dtype).removeprefix('torch.')}"
        if fault.handles_fail_on == rank:
            notes.line(what)
            raise RuntimeError(f"{what} failed")
        with notes.inside(what, collective=True):
            return all_gather(parts, own, **options)

    def noted_barrier(*arguments: Any, **options: Any) -> Any:
        with notes.inside("barrier", collective=True):
            return barrier(*arguments, **options)

    # ``all_gather_object`` looks in the second. Modules do not declare that names may be replaced.
    for module in (dist, distributed_c10d):
        module.all_gather = noted_all_gather  # type: ignore[attr-defined]
        module.barrier = noted_barrier  # type: ignore[attr-defined]


def _instrument_side_calls(notes: Notes, fault: Fault) -> None:
    submit, shutdown = ThreadPoolExecutor.submit, ThreadPoolExecutor.shutdown
    result, done = Future.result, Future.done
    numbers = itertools.count(1)  # of the side calls: the first is the init

    def noted_submit(
        self: ThreadPoolExecutor, call: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        def noted_call() -> Any:
            try:
                return call(*args, **kwargs)
            finally:
                notes.say("side call ended")

        notes.line("submit")
        notes.say("side call begins")
        future = submit(self, noted_call)
        if next(numbers) > 1 and fault.when == "before the peek":
            concurrent.futures.wait([future])
        return future

    def noted_shutdown(self: ThreadPoolExecutor, wait: bool = True, **options: Any) -> None:
        if not wait:
            notes.line("leave")
            return shutdown(self, wait=False, **options)
        with notes.inside("join"):
            return shutdown(self, wait=True, **options)

    def noted_result(self: Future[Any], timeout: float | None = None) -> Any:
        with notes.inside("result"):
            return result(self, timeout)

    def noted_done(self: Future[Any]) -> bool:
        notes.line("peek")
        return done(self)

    for owner, name, function in (
        (ThreadPoolExecutor, "submit", noted_submit),
        (ThreadPoolExecutor, "shutdown", noted_shutdown),
        (Future, "result", noted_result),
        (Future, "done", noted_done),
    ):
        setattr(owner, name, function)
