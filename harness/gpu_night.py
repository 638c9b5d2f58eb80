"""Runs the suites of a GPU validation night; on a machine without a GPU, the same on the CPU.

    python -m harness.gpu_night            # every suite
    python -m harness.gpu_night nccl ipc:0 # one suite, and one entry of another

The suites are those of ``.buildkite/gpu_suites.py``. Exit codes: 0 every entry that ran passed, and
at least one ran; 2 none could, or a usage error; otherwise the worst of the runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import cli
from harness.errors import UsageError
from harness.gpus import visible_gpus

ROOT = Path(__file__).parents[1]
SUITES_FILE = ROOT / ".buildkite" / "gpu_suites.py"
OUT = "out/gpu_night"
EXIT_USAGE, SIGNALLED = 2, 128
SHOWN_CODES = {0: "passed", 10: "FAIL", 11: "HANG", 12: "INVALID"}

Entry = tuple[str, int, Sequence[str], dict[str, str]]
Run = Callable[[Sequence[str]], int]  # of `resync-chaos`, with its arguments


@dataclass(frozen=True)
class Ended:
    """How one entry ended; ``code`` is ``None`` where the machine cannot run any of it."""

    name: str
    code: int | None
    told: str

    @property
    def status(self) -> int:
        """Its exit status as a shell has it: a run that a signal ended has failed, too."""
        code = self.code or 0
        return code if code >= 0 else SIGNALLED - code

    def __str__(self) -> str:
        how = "skipped" if self.code is None else SHOWN_CODES.get(self.code, f"exit {self.code}")
        return f"{how:8} {self.name}: {self.told}"


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


def arguments_of(name: str, entry: Entry, num_gpus: int) -> list[str]:
    """Return the arguments of ``resync-chaos run`` for one entry."""
    path, _, further, _ = entry
    device = ["--device", "cuda"] if num_gpus else []
    out = f"{OUT}/{name.replace(':', '-')}"
    return [str(ROOT / path), *further, "--engines", "vllm", *device, "--plain", "--out", out]


def run_entry(name: str, entry: Entry, num_gpus: int, run: Run) -> Ended:
    """Run what the machine can of one entry, and say how it ended.

    Raises:
        UsageError: the entry names no scenario, or one with errors.
    """
    arguments = arguments_of(name, entry, num_gpus)
    scenarios, left_out = cli.would_run(arguments, num_gpus)
    if not scenarios:
        return Ended(name, None, f"{left_out[0].name}: {left_out[0].reason}")
    print(f"\n== {name}: {entry[0]} {' '.join(entry[2])}", flush=True)
    told = f"{len(scenarios)} scenarios" + (f", {len(left_out)} left out" if left_out else "")
    return Ended(name, run(["run", *arguments]), told)


def run_night(entries: Sequence[tuple[str, Entry]], num_gpus: int, run: Run) -> int:
    """Run the entries one after the other, list how each ended, and return the exit code."""
    print(_headline(num_gpus), flush=True)
    ended = [run_entry(name, entry, num_gpus, run) for name, entry in entries]
    print("\n== the night")
    for each in ended:
        print(each)
    codes = [each.status for each in ended if each.code is not None]
    if not codes:
        print(f"expected an entry that {num_gpus} GPUs are enough for, found none of {len(ended)}.")
        return EXIT_USAGE
    return max(codes)


def gpus_of_the_night(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many GPUs there are.

    Raises:
        UsageError: fewer than the job was to get: it must not spend the night on the CPU instead.
    """
    found = len(visible_gpus(environment))
    promised = environment.get("NUM_GPUS", "0")
    if not promised.isdecimal() or found < int(promised):
        raise UsageError(
            f"NUM_GPUS: expected as many GPUs as the job was promised, {promised}, found {found}. "
            "See what nvidia-smi -L lists, or unset it to run on what is there."
        )
    return found


def _headline(num_gpus: int) -> str:
    if not num_gpus:
        return (
            "no GPU found: real vLLM engines run on the CPU, over gloo groups that stand in for "
            "NCCL, and shared memory for CUDA IPC."
        )
    return (
        f"{num_gpus} GPU{'' if num_gpus == 1 else 's'} found: vLLM's engines and trainer classes "
        "run on them, over NCCL and CUDA IPC; what needs more is left out."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.gpu_night",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="nccl, or nccl:0 (all)")
    options = parser.parse_args(arguments)
    try:
        entries = chosen(options.suites, suites())
        return run_night(entries, gpus_of_the_night(), _run)
    except UsageError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE


def _run(arguments: Sequence[str]) -> int:
    command = [sys.executable, "-m", "harness.cli", *arguments]
    return subprocess.run(command, check=False, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
