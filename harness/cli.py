"""The command line: what it takes, what it runs and prints, and its exit codes.

Exit codes: 0 every scenario passed; 10 fail, 11 hang, 12 invalid (the worst of the run); 2 a usage
or scenario-file error, or nothing selected; 1 the harness itself failed; 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from rich.console import Console

from harness.child import LauncherError
from harness.contracts import Parts, ProcessSpec, ScenarioResult, Verdict
from harness.engine_choice import AS_WRITTEN, BOTH, CHOICES, choose, name_in_file, pairs
from harness.errors import HarnessError, UsageError
from harness.launcher import Launcher
from harness.parts import default_parts, require_vllm
from harness.scenario import Scenario
from harness.scenario_file import discover, load_file
from harness.suite import Suite
from harness.targets import DEFAULT
from reports import REPORTS
from reports.differences import compare
from reports.live import make_display
from reports.table import render

TARGET_CHECK_LIMIT_S = 60.0
EXIT_HARNESS_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except HarnessError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except LauncherError as error:
        print(error, file=sys.stderr)
        return EXIT_HARNESS_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="resync-chaos",
        description="Run failure scenarios of a weight push against a resync module.",
        epilog="Exit codes: 0 pass, 10 fail, 11 hang, 12 invalid (the worst of the run), 2 usage "
        "or file error, 1 the harness failed, 130 interrupted.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=command)
        sub.add_argument(
            "paths", nargs="+", type=Path, metavar="PATH", help="scenario files, or folders of them"
        )
        sub.add_argument(
            "-k",
            dest="pattern",
            metavar="NAME",
            help="only scenarios whose name contains NAME, or matches it as a glob",
        )
        return sub

    run = add("run", _run, "Run scenarios and judge them.")
    run.add_argument("--target", default=DEFAULT, metavar="MODULE:FACTORY",
                     help="the module under test (default: %(default)s)")  # fmt: skip
    run.add_argument("--out", type=Path, default=Path("out"), metavar="DIR",
                     help="where journals, logs and reports go (default: %(default)s)")  # fmt: skip
    run.add_argument("--engines", choices=CHOICES, default=AS_WRITTEN,
                     help="as-written: those of each file; vllm: real ones, for every scenario "
                     "that they can be asked for; vllm-next: fakes under the rules that vLLM moves "
                     "to; both: each file's and real ones side by side, and any difference fails "
                     "the run (default: %(default)s)")  # fmt: skip
    run.add_argument("-j", dest="jobs", type=int, default=_default_jobs(), metavar="N",
                     help="scenarios at a time (default: %(default)s)")  # fmt: skip
    run.add_argument("--plain", action="store_true",
                     help="plain lines instead of a live display; the default in CI")  # fmt: skip
    add("check", _check, "Check scenario files; start nothing.")
    add("list", _list, "List scenarios with what each proves.")
    return parser


def _default_jobs() -> int:
    """One more than the cores: scenarios that wait out a time-out leave theirs idle."""
    return (os.cpu_count() or 1) + 1


# ---- selecting ----


def _load(options: argparse.Namespace) -> list[Scenario]:
    """Return the selected scenarios.

    Raises:
        UsageError: a file has errors, which it holds all of, or nothing is selected.
    """
    files = [load_file(path) for path in discover(options.paths)]
    errors = [str(error) for file in files for error in file.errors]
    if errors:
        raise UsageError("\n".join(errors))
    scenarios = [scenario for file in files for scenario in file.scenarios]
    chosen = [s for s in scenarios if _matches(s.name, options.pattern)]
    if not chosen:
        where = ", ".join(str(path) for path in options.paths)
        raise UsageError(
            f"expected scenarios matching {options.pattern or 'anything'} in {where}, found none "
            f"of {len(scenarios)}. `resync-chaos list {where}` shows their names."
        )
    return chosen


def _matches(name: str, pattern: str | None) -> bool:
    if pattern is None:
        return True
    pattern = name_in_file(pattern)  # a run on other engines shows names with its mark
    return pattern in name or fnmatchcase(name, pattern)


def _check(options: argparse.Namespace) -> int:
    scenarios = _load(options)
    files = {scenario.path for scenario in scenarios}
    print(f"files: {len(files)}, scenarios: {len(scenarios)}, no errors")
    return 0


def _list(options: argparse.Namespace) -> int:
    for scenario in _load(options):
        print(f"{scenario.name}\n    {scenario.proves}")
    return 0


# ---- running ----


def _run(options: argparse.Namespace) -> int:
    scenarios, left_out = choose(_load(options), options.engines)
    if not scenarios:
        raise UsageError(
            f"expected scenarios that --engines {options.engines} can run, found none of "
            f"{len(left_out)}. {left_out[0].name}: {left_out[0].reason}"
        )
    if warning := require_vllm(scenarios):
        print(warning, file=sys.stderr)
    if options.jobs < 1:
        raise UsageError(f"-j: expected at least 1, found {options.jobs}.")
    _make_writable(options.out)
    sys.path.insert(0, os.getcwd())  # where a user's own target is
    targets = sorted({scenario.target or options.target for scenario in scenarios})
    parts = default_parts(options.target, scenarios)
    code = asyncio.run(_run_all(scenarios, parts, targets, options))
    for each in left_out:
        print(f"left out: {each.name}: {each.reason}")
    return code


def _make_writable(out_dir: Path) -> None:
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        probe = out_dir / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"--out {out_dir}: expected a folder that can be written to, found {error.strerror}. "
            "Choose another with --out."
        ) from error


async def _run_all(
    scenarios: list[Scenario], parts: Parts, targets: list[str], options: argparse.Namespace
) -> int:
    console = Console(highlight=False)
    display = make_display(console, options.plain or bool(os.environ.get("CI")))
    begun_s = time.monotonic()
    found: dict[str, ScenarioResult] = {}
    interrupted = False
    failure: LauncherError | None = None

    async def run() -> None:
        async with Launcher(parts.preload) as launcher:
            await _check_targets(launcher, targets)
            suite = Suite(
                launcher,
                parts,
                out_dir=options.out,
                jobs=options.jobs,
                display=display,
                results=found,
            )
            display.begin(len(scenarios))
            try:
                await suite.run(scenarios)
            finally:
                display.end()

    running = asyncio.create_task(run())
    with _cancelled_by_signals(running):
        try:
            await running
        except asyncio.CancelledError:
            interrupted = True
        except LauncherError as error:
            if not found:
                raise
            failure = error  # what had ended is worth its reports
    results = [found[s.name] for s in scenarios if s.name in found]
    written = [write(results, options.out) for write in REPORTS.values()]
    render(
        results,
        console,
        elapsed_s=time.monotonic() - begun_s,
        num_not_run=len(scenarios) - len(results),
        rerun_options=_again(options),
    )
    console.print(f"reports: {', '.join(str(path) for path in written)}", soft_wrap=True)
    if failure is not None:
        raise failure
    if interrupted:
        return EXIT_INTERRUPTED
    alike = compare(pairs(found), found, console) if options.engines == BOTH else True
    codes = [result.verdict.exit_code for result in results]
    return max([*codes, 0 if alike else Verdict.FAIL.exit_code])


@contextlib.contextmanager
def _cancelled_by_signals(task: asyncio.Task[None]) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into the task's cancellation, so that everything is torn down."""
    loop = asyncio.get_running_loop()

    def cancel_once() -> None:
        if not task.cancelling():  # a second Ctrl-C must not cut the tearing down short
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, cancel_once)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            if task.cancelled():  # nor what is left to do: the table and the reports
                signal.signal(number, signal.SIG_IGN)


async def _check_targets(launcher: Launcher, targets: list[str]) -> None:
    """Import every target in a process of its own before anything runs.

    Raises:
        UsageError: one cannot be imported.
    """
    spec = ProcessSpec(
        name="targets",
        entry="harness.targets:check",
        config={"targets": targets},
        log_path=launcher.scratch.path / "targets.log",
    )
    child = (await launcher.start([spec]))["targets"]
    problems: list[str] = []
    for target in targets:
        try:
            answer = await child.receive(TARGET_CHECK_LIMIT_S)
            found = ""
            if answer is None:
                status = await child.wait(TARGET_CHECK_LIMIT_S)
                found = f"one that ended with status {status}:\n{child.log_tail()}"
        except TimeoutError:
            answer, found = None, f"one that takes longer than {TARGET_CHECK_LIMIT_S:g} s"
        if answer is None:
            problems.append(
                f"target {target}: expected a module that can be imported, found {found}"
            )
            break  # the process that would import the others has gone, or is busy
        problems += answer["problems"]
    await launcher.end([child])
    if problems:
        raise UsageError("\n".join(problems))


def _again(options: argparse.Namespace) -> list[str]:
    """Return the options that a command to run one scenario again needs."""
    engines = [] if options.engines == AS_WRITTEN else ["--engines", options.engines]
    target = [] if options.target == DEFAULT else ["--target", shlex.quote(options.target)]
    return [*engines, *target]


if __name__ == "__main__":
    sys.exit(main())
