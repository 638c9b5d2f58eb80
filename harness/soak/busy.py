"""Processes that use a CPU each, to load the machine beside what is measured."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

NUM_BUSY = 2
# Its standard input is a pipe that nothing is written to: it ends with whoever started it.
_BUSY = """
import os, threading
threading.Thread(target=lambda: os._exit(len(os.read(0, 1))), daemon=True).start()
while True:
    pass
"""


@contextlib.contextmanager
def busy_processes(count: int = NUM_BUSY) -> Iterator[list[int]]:
    """Run processes that do nothing but use a CPU each; yields their pids, and ends them.

    Args:
        count: how many; none is fine.
    """
    with contextlib.ExitStack() as started:
        processes = []
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", _BUSY], stdin=subprocess.PIPE)
            started.callback(process.communicate)  # closes the pipe, and waits for the end
            started.callback(process.kill)  # first: it may have had no CPU to look at the pipe
            processes.append(process)
        yield [process.pid for process in processes]
