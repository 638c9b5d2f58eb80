"""The line of the user's code, out of a dump of every thread."""

from __future__ import annotations

import pytest

from harness.monitors.stack_head import stack_head

OTHER = """\
Thread 0x00007f01 (most recent call first):
  File "/app/harness/channel.py", line 52 in receive
  File "/usr/lib/python3.11/threading.py", line 982 in run

"""
TORCH = """\
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d.py", line 3252 in all_reduce
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
"""
OWN = """\
  File "/app/trainer/push.py", line 27 in push
  File "/app/trainer/loop.py", line 157 in <lambda>
  File "/app/trainer/main.py", line 1 in main
"""
MAIN = "Current thread 0x00007f02 (most recent call first):\n"
OWN_HEAD = "push (push.py:27) < <lambda> (loop.py:157)"
TORCH_HEAD = "all_reduce (c10d.py:3252) < wrapper (c10d_logger.py:83)"
# fmt: off
HEADS = [
    # id, what faulthandler wrote, its head
    ("below-a-library",   OTHER + MAIN + TORCH + OWN, OWN_HEAD),
    ("own-code",          MAIN + OWN,                 OWN_HEAD),
    ("not-the-main-one",  OTHER + MAIN + TORCH,       TORCH_HEAD),
    ("without-a-header",  OWN,                        OWN_HEAD),
    ("no-stack",          "rank:1 gave no stacks in 2 s; process state: T.", ""),
    ("nothing",           "",                         ""),
]
# fmt: on


@pytest.mark.parametrize(
    ("stacks", "head"), [case[1:] for case in HEADS], ids=[case[0] for case in HEADS]
)
def test_stack_head(stacks: str, head: str) -> None:
    """The main thread's innermost frames count, a library's only where there are no others."""
    assert stack_head(stacks) == head
