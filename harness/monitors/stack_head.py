"""The head of a Python stack: the lines of the user's own code in a dump of all threads."""

from __future__ import annotations

import re
from pathlib import PurePath

NUM_FRAMES = 2
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|^<")  # torch's, Python's own


def stack_head(stacks: str) -> str:
    """Return the innermost frames outside libraries of the main thread, innermost first.

    Such as ``push (agree_after_send.py:27) < _run (process.py:157)``; empty where the text
    holds no frame. Where all are a library's, its own are shown.

    Args:
        stacks: what faulthandler wrote; it dumps the main thread last.
    """
    main_thread = stacks.rpartition("hread 0x")[2]
    frames = [match for line in main_thread.splitlines() if (match := _FRAME.match(line))]
    own = [frame for frame in frames if not _LIBRARY.search(frame["file"])]
    return " < ".join(map(_in_words, (own or frames)[:NUM_FRAMES]))


def _in_words(frame: re.Match[str]) -> str:
    return f"{frame['function']} ({PurePath(frame['file']).name}:{frame['line']})"
