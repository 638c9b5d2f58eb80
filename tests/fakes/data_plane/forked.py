"""Runs functions in forked processes, so that gloo's threads stay out of pytest."""

from __future__ import annotations

import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any


def run_forked(functions: Sequence[Callable[[], Any]], *, limit_s: float = 20.0) -> list[Any]:
    """Run each function in a process of its own and return their results, in order.

    A function that never returns is killed at the limit, and so is every process that is left.

    Raises:
        AssertionError: a function raised, was killed or took longer; shows what each one said.
    """
    pids, pipes = [], []
    for function in functions:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _child(function, writer)
        os.close(writer)
        pids.append(pid)
        pipes.append(reader)
    said = _read_all(pipes, time.monotonic() + limit_s)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)  # ours, and not reaped yet: the number cannot be another's
        os.waitpid(pid, 0)
    answers = [json.loads(text) if text else {"raised": "said nothing"} for text in said]
    assert all("result" in answer for answer in answers), "\n".join(
        f"{index}: {answer.get('raised', 'ok')}" for index, answer in enumerate(answers)
    )
    return [answer["result"] for answer in answers]


def _read_all(pipes: Sequence[int], deadline: float) -> list[bytes]:
    said = dict.fromkeys(pipes, b"")
    unread = set(pipes)
    while unread and (left_s := deadline - time.monotonic()) > 0:
        for pipe in select.select(list(unread), [], [], left_s)[0]:
            data = os.read(pipe, 1 << 16)
            said[pipe] += data
            if not data:
                unread.discard(pipe)
    for pipe in pipes:
        os.close(pipe)
    return list(said.values())


def _child(function: Callable[[], Any], writer: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        answer = {"result": function()}
    except BaseException:
        answer = {"raised": traceback.format_exc()}
    with os.fdopen(writer, "w") as pipe:
        json.dump(answer, pipe)
    signal.pause()  # keep our sockets open until everyone is done
