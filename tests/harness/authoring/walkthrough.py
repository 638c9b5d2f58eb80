"""Plays a page's console blocks, and says where what is shown differs from what stands there.

A block starts with ``$ command``; what follows is what it shows. A line ``...`` stands for any
lines. Text after `ASKS` is typed. Numbers of seconds and tokens may differ, and words may be
wrapped elsewhere where a number is longer.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from at_a_terminal import ROOT, dialogue

ASKS = " > "
ELLIPSIS = "..."
LIMIT_S = 100.0
COLUMNS = 100


@dataclass(frozen=True)
class Block:
    """One command, and what the page says that it shows."""

    command: str
    shown: tuple[str, ...]

    @property
    def answers(self) -> list[str]:
        """What is typed, where the command asks."""
        return [line.partition(ASKS)[2] for line in self.shown if ASKS in line]


def blocks(page: str) -> Iterator[Block]:
    """Yield the page's console blocks."""
    for text in re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        command, *shown = text.splitlines()
        assert command.startswith("$ "), f"expected $ and a command, found {command!r}"
        yield Block(command[2:], tuple(shown))


def files(page: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of the files that the page writes: blocks that begin ``# NAME``."""
    for text in re.findall(r"^```python\n(# .*?)^```$", page, re.MULTILINE | re.DOTALL):
        yield text.partition("\n")[0].removeprefix("# "), text


def play(block: Block, folder: Path) -> list[str]:
    """Run a block's command in the folder; return the lines that it shows."""
    words = shlex.split(block.command)
    if words[0] == "cat":
        return (folder / words[1]).read_text(encoding="utf-8").splitlines()
    if block.answers:
        assert words[0] == "resync-chaos"
        return dialogue(words[1:], block.answers, folder)[1].splitlines()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "COLUMNS": str(COLUMNS),
        "NO_COLOR": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
    }
    done = subprocess.run(
        [*_program(words[0]), *words[1:]],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.stdout.splitlines()


def _program(name: str) -> list[str]:
    if name == "pytest":
        return [sys.executable, "-m", "pytest", *plugin_options()]
    assert name == "resync-chaos", f"expected a command that the page may show, found {name}"
    return [sys.executable, "-m", "harness.cli"]


def plugin_options() -> list[str]:
    """Return what loads the plugin where the harness runs from a checkout, not installed."""
    installed = importlib.metadata.entry_points(group="pytest11", name="resync_chaos")
    return [] if installed else ["-p", "harness.pytest_plugin"]


def differences(expected: tuple[str, ...], found: list[str]) -> str | None:
    """Return the first line that differs, or ``None``."""
    wanted = [_steady(line) for line in expected]
    shown = [_steady(line) for line in found]
    at = 0
    anywhere = False
    for line in wanted:
        if line == ELLIPSIS:
            anywhere = True
            continue
        places = range(at, len(shown)) if anywhere else range(at, min(at + 1, len(shown)))
        place = next((place for place in places if shown[place] == line), None)
        if place is None:
            there = shown[at] if at < len(shown) else "the end"
            return f"expected {line!r}, found {there!r}"
        at, anywhere = place + 1, False
    if at < len(shown) and not anywhere:
        return f"expected the end, found {shown[at]!r}"
    return None


def _steady(line: str) -> str:
    line = re.sub(r"\d+\.\d+ ?s\b", "N s", line.rstrip())
    line = re.sub(r"\b\d+ tokens?", "N tokens", line)
    return re.sub(r"[=_]{3,}|\s{2,}(?=N s)", " ", line)  # rules, and gaps before a time
