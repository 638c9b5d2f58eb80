"""The warm-up serves what a push asks, and leaves a process that can be forked."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEFT = """
import os
from fakes.engine.warm_up import warm_up

def found():
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{fd}")]
    return len(os.listdir("/proc/self/task")), sorted(l for l in links if l.startswith("socket:"))

before = found()
warm_up()
print(before == found(), before, found())
"""
SOURCES = """
import fastapi.routing as routing
from fakes.engine.routes_serving import completions
from fakes.engine.warm_up import warm_up

warm_up()
read = []
routing.inspect.getsourcelines = lambda function: read.append(function)
routing._extract_endpoint_context(completions)
print(not read, read)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("source", [LEFT, SOURCES], ids=["leaves-nothing", "reads-no-source-later"])
def test_warm_up(source: str) -> None:
    """One thread and no socket are left, and FastAPI has read the routes' sources."""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.stdout.startswith("True"), done.stdout + done.stderr
