"""Runs the suites of a GPU validation night; on a machine without a GPU, the same on the CPU.

    python -m harness.gpu_night            # every suite
    python -m harness.gpu_night nccl ipc:0 # one suite, and one entry of another

The suites are those of ``.buildkite/gpu_suites.py``.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.errors import UsageError

ROOT = Path(__file__).parents[1]
SUITES_FILE = ROOT / ".buildkite" / "gpu_suites.py"
OUT = "out/gpu_night"
EXIT_USAGE = 2

Entry = tuple[str, int, Sequence[str], dict[str, str]]


def suites() -> dict[str, list[Entry]]:
    """Return the suites, by name."""
    spec = importlib.util.spec_from_file_location("gpu_suites", SUITES_FILE)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, list[Entry]] = module.SUITES
    return found


def chosen(names: Sequence[str], known: dict[str, list[Entry]]) -> list[tuple[str, Entry]]:
    """Return the entries that are asked for, each with its name; all of them by default.

    Raises:
        UsageError: there is no such suite or entry.
    """
    entries = {
        f"{suite}:{number}": entry
        for suite, of_suite in known.items()
        for number, entry in enumerate(of_suite)
    }
    picked = []
    for name in names or known:
        matching = [key for key in entries if name in (key, key.partition(":")[0])]
        if not matching:
            raise UsageError(
                f"expected a suite of {', '.join(known)}, or an entry such as "
                f"{next(iter(entries))}, found {name}."
            )
        picked += matching
    return [(key, entries[key]) for key in dict.fromkeys(picked)]


def num_gpus() -> int:
    """Return how many GPUs the driver shows; 0 without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    listed = subprocess.run([program, "-L"], capture_output=True, check=False, text=True)
    return listed.stdout.count("GPU ") if listed.returncode == 0 else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; return the worst exit code of the entries."""
    parser = argparse.ArgumentParser(prog="python -m harness.gpu_night", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="nccl, or nccl:0 (all)")
    try:
        entries = chosen(parser.parse_args(arguments).suites, suites())
    except UsageError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    gpus = num_gpus()
    print(
        f"{gpus or 'no'} GPU{'' if gpus == 1 else 's'} found: real vLLM engines run on the CPU, "
        "over gloo groups that stand in for NCCL, and shared memory for CUDA IPC. "
        + ("The engines' CUDA path is not used yet." if gpus else "")
    )
    codes = []
    for name, (path, _, further, _) in entries:
        print(f"\n== {name}: {path} {' '.join(further)}", flush=True)
        out = f"{OUT}/{name.replace(':', '-')}"
        run = ["run", path, *further, "--engines", "vllm", "--plain", "--out", out]
        command = [sys.executable, "-m", "harness.cli", *run]
        codes.append(subprocess.run(command, check=False, cwd=ROOT).returncode)
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
