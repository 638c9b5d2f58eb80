"""What the command line says of each broken file, and the golden file that holds it."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from pathlib import Path

from harness import cli

from .cases import NAMES, lay_out

GOLDEN = Path(__file__).with_name("messages.txt")


def check(name: str) -> tuple[int, str]:
    """Run ``resync-chaos check`` on one broken file, in a folder of its own.

    Returns:
        The exit code, and what was printed to stdout and stderr together.
    """
    said = io.StringIO()
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        path = lay_out(name, Path(folder))
        os.chdir(folder)  # so that messages name the file alone
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = cli.main(["check", path])
        finally:
            os.chdir(before)
    return code, said.getvalue()


def all_messages() -> str:
    """Return the golden file: each name, and the lines that are printed."""
    return "\n".join(f"## {name}\n{check(name)[1]}" for name in NAMES)


def golden() -> dict[str, str]:
    """Return what the golden file says, by name."""
    blocks = GOLDEN.read_text(encoding="utf-8").removeprefix("## ").split("\n## ")
    return {name: text for name, _, text in (block.partition("\n") for block in blocks)}
