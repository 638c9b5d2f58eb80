"""What is read from the kernel of real processes, in every state that the monitor tells apart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from harness.monitors import kernel
from harness.monitors.snapshot import ProcessAt

LIMIT_S = 20.0
LOCK = "import threading; lock = threading.Lock(); lock.acquire(); "
THREAD = "import threading, time; threading.Thread(target={}).start(); time.sleep(60)"

# fmt: off
WAITS = [
    # id, what the process does, what its main thread waits in, when that ends, in seconds from now
    ("sleep",             "import time; time.sleep(60)",                     "sleep", 60.0),
    ("lock",              LOCK + "lock.acquire()",                           "lock",  None),
    ("lock-with-a-limit", LOCK + "lock.acquire(timeout=60)",                 "lock",  60.0),
    ("event",             "import threading; threading.Event().wait()",      "lock",  None),
    ("queue",             "import queue; queue.SimpleQueue().get(timeout=60)", "lock", 60.0),
    ("socket",            "import select; select.select([], [], [], 60)",    "poll",  None),
]
# fmt: on


@contextmanager
def _process(code: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        try:
            yield child
        finally:
            child.kill()


def _once(pid: int, holds: Callable[[ProcessAt], bool]) -> ProcessAt:
    """Look until something holds: a process takes a while to come to where it waits."""
    end_s = time.monotonic() + LIMIT_S
    while not holds(at := kernel.look_at(pid)):
        assert time.monotonic() < end_s, at
        time.sleep(0.005)
    return at


@pytest.mark.parametrize(
    ("code", "wait", "limit_s"), [case[1:] for case in WAITS], ids=[case[0] for case in WAITS]
)
def test_waits(code: str, wait: str, limit_s: float | None) -> None:
    """A main thread's wait is known, and when it ends where it has a limit."""
    begun_s = time.monotonic()
    with _process(code) as child:
        # Between the call and its sleep a thread still runs, so the state is part of the condition.
        at = _once(
            child.pid,
            lambda at: (at.wait, at.state, at.ends_s is None) == (wait, "S", not limit_s),
        )
        now_s = time.monotonic()
        assert not kernel.is_runnable(child.pid)
    if limit_s is not None:
        assert at.ends_s is not None
        assert begun_s + limit_s < at.ends_s < now_s + limit_s


@pytest.mark.parametrize(
    "code", ["while True: pass", THREAD.format("lambda: [None for _ in iter(int, 1)]")]
)
def test_a_process_that_runs(code: str) -> None:
    """It is runnable, in whichever thread, and uses CPU time."""
    with _process(code) as child:
        end_s = time.monotonic() + LIMIT_S
        while not kernel.is_runnable(child.pid) or (kernel.cpu_s(child.pid) or 0.0) < 0.1:
            assert time.monotonic() < end_s


def test_a_process_that_is_stopped() -> None:
    """It is stopped until it is continued."""
    with _process("import time; time.sleep(60)") as child:
        child.send_signal(signal.SIGSTOP)
        assert _once(child.pid, lambda at: at.is_stopped).state == "T"
        child.send_signal(signal.SIGCONT)
        assert not _once(child.pid, lambda at: not at.is_stopped).is_stopped


def test_a_process_that_is_gone() -> None:
    """Nothing is known of it, and nothing raises."""
    with _process("pass") as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert kernel.look_at(child.pid).state == "Z"
        child.wait()
    assert kernel.look_at(child.pid) == ProcessAt()
    assert kernel.cpu_s(child.pid) is None
    assert not kernel.is_runnable(child.pid)
