"""Makes the README's picture of a run: ``python docs/picture.py``, in the sessions' environment.

Runs a few scenarios for real and draws what the terminal showed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
COLUMNS = 118
CHOSEN = ["scenarios/controls", "scenarios/draft", "scenarios/scrub"]


def main() -> None:
    """Run the scenarios and write ``docs/run.svg``."""
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    with tempfile.TemporaryDirectory() as out_dir:
        command = [sys.executable, "-m", "harness.cli", "run", *CHOSEN, "--plain", "--out", out_dir]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    # From the table on: the progress lines before it scroll by.
    lines = done.stdout.splitlines()
    first = next(i for i, line in enumerate(lines) if "scenario" in line and "verdict" in line)
    shown = [line for line in lines[first:] if "reports:" not in line]
    with open(os.devnull, "w") as nowhere:  # it records; nothing is to be shown here
        console = Console(record=True, width=COLUMNS, file=nowhere)
        console.print(Text("$ resync-chaos run " + " ".join(CHOSEN), style="bold"))
        console.print(Text.from_ansi("\n".join(shown)))
        console.save_svg(str(ROOT / "docs" / "run.svg"), title="resync-chaos")


if __name__ == "__main__":
    main()
