"""``reproduce.sh``: the one command that runs a scenario again, for every scenario of a run."""

from __future__ import annotations

import shlex
from pathlib import Path

from harness.reporting.run_folder import Run
from reports.phrases import visible
from reports.stories import Stories

HEAD = """#!/bin/sh
# Runs one scenario of this run again: reproduce.sh NAME. Without a name it lists them.
# Start it where the run was started, with resync-chaos on the path or named by RESYNC_CHAOS.
resync_chaos=${RESYNC_CHAOS:-resync-chaos}
if [ $# -eq 0 ]; then
"""


def write(run: Run, stories: Stories, out_dir: Path) -> Path:
    """Write ``reproduce.sh``, executable, into ``out_dir``, and return its path.

    Raises:
        OSError: ``out_dir`` is not writable.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    found = [
        *((r.verdict.value, r.name, r.path) for r in run.results),
        *(("unfinished", each.name, each.path) for each in run.unfinished),
    ]
    found.sort(key=lambda each: (each[0] == "pass", each[1]))
    lines = [HEAD.rstrip("\n")]
    for verdict, name, _ in found:
        lines.append(f"  printf '%s\\n' {_quoted(f'{verdict:<11}{visible(name)}')}")
    lines += ["  exit 0", "fi", "name=$1", "shift", 'case "$name" in']
    for _, name, file in found:
        words = ["run", file, "-k", name, *run.info.rerun_options]
        command = " ".join(_quoted(word) for word in words)
        lines.append(f'  {_quoted(name)}) exec "$resync_chaos" {command} "$@" ;;')
    lines += [
        "  *) printf 'expected a scenario of this run, found %s\\n' \"$name\" >&2; exit 2 ;;",
        "esac",
    ]
    path = out_dir / "reproduce.sh"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def _quoted(word: str) -> str:
    """Quote for the shell; what a terminal would obey is spelled out: the script is read, too."""
    return shlex.quote(visible(word))
