"""The command line: what it takes, what it runs and prints, and its exit codes.

Exit codes: 0 every scenario passed; 10 fail, 11 hang, 12 invalid (the worst of the run); 2 a usage
or scenario-file error, or nothing selected; 1 the harness itself failed; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import language_commands
from harness.authoring import arguments
from harness.contracts import Parts, Verdict
from harness.engine_choice import (
    AS_WRITTEN,
    BOTH,
    CHOICES,
    LeftOut,
    choose,
    name_in_file,
    pairs,
    placeable,
)
from harness.errors import HarnessError, LauncherError, UsageError
from harness.gpus import visible_gpus
from harness.known_bad import arguments as known_bad
from harness.reporting import arguments as reporting
from harness.scenario import Scenario
from harness.scenario_file import discover, load_file
from harness.shards import Shard
from harness.targets import DEFAULT

# What only a run needs is imported by the run: `check` answers an editor.
if TYPE_CHECKING:
    import asyncio

    from harness.launcher import Launcher
    from harness.reporting.run_folder import RunInfo
    from reports.eta import Plan

    # Gives a launcher that has imported these modules.
    Launch = Callable[[Sequence[str]], contextlib.AbstractAsyncContextManager[Launcher]]

EXIT_HARNESS_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
CPU, CUDA = "cpu", "cuda"
ON_REAL = ("vllm", BOTH)  # of the choices of engines
EXIT_PIPE_CLOSED = 128 + signal.SIGPIPE  # as a shell reports it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    options.words = ("resync-chaos", *(sys.argv[1:] if arguments is None else arguments))
    try:
        code = int(options.command(options))
        sys.stdout.flush()
        return code
    except HarnessError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except LauncherError as error:
        print(error, file=sys.stderr)
        return EXIT_HARNESS_FAILED
    except BrokenPipeError:  # whoever read the output, such as `head`, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED


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
    run.add_argument("--device", choices=(CPU, CUDA), default=CPU,
                     help="where real engines and their trainers run: on stand-ins for NCCL and "
                     "CUDA IPC, or on this machine's GPUs (default: %(default)s)")  # fmt: skip
    run.add_argument("-j", dest="jobs", type=int, default=_default_jobs(), metavar="N",
                     help="scenarios at a time (default: %(default)s)")  # fmt: skip
    run.add_argument("--shard", metavar="N/M",
                     help="only the N-th of M shares of them, one for each machine")  # fmt: skip
    run.add_argument("--plain", action="store_true",
                     help="plain lines instead of a live display; the default in CI")  # fmt: skip
    arguments.add_run_options(run)
    reporting.add_run_options(run)
    add("check", _check, "Check scenario files; start nothing.")
    arguments.add_commands(commands, add, _load)
    language_commands.add_commands(commands)
    reporting.add_commands(commands)
    known_bad.add_commands(commands)
    return parser


def _default_jobs() -> int:
    """Two more than the cores: scenarios that wait out a time-out leave theirs idle."""
    return (os.cpu_count() or 1) + 2


# ---- selecting ----


def _load(options: argparse.Namespace) -> list[Scenario]:
    """Return the selected scenarios.

    Raises:
        UsageError: a file has errors, which it holds all of, or nothing is selected.
    """
    files = [load_file(path) for path in discover(options.paths)]
    errors = dict.fromkeys(str(error) for file in files for error in file.errors)
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
    shown = {scenario.path for scenario in chosen}
    for warning in dict.fromkeys(w for file in files if file.path in shown for w in file.warnings):
        print(f"warning: {warning}", file=sys.stderr)
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


# ---- running ----


def _run(options: argparse.Namespace) -> int:
    import asyncio

    from harness.launcher import Launcher

    if not options.watch:
        return _run_once(options, Launcher, asyncio.run)
    from harness.authoring.watching import watch

    return watch(
        options.paths,
        lambda kept: _run_once(options, kept.launcher, kept.run),
        target=options.target,
    )


def _run_once(
    options: argparse.Namespace, launch: Launch, run: Callable[[Coroutine[Any, Any, int]], int]
) -> int:
    """Run what the options choose, with the launcher that ``launch`` makes."""
    from harness.parts import default_parts, require_cuda, require_vllm

    gpus = visible_gpus() if options.device == CUDA else ()
    scenarios, left_out = _choose(options, len(gpus))
    if not scenarios:
        how = " ".join(["--engines", options.engines, *_device(options)])
        raise UsageError(
            f"expected scenarios that {how} can run, found none of {len(left_out)}. "
            f"{left_out[0].name}: {left_out[0].reason}"
        )
    if options.device == CUDA:
        require_cuda()
    if warning := require_vllm(scenarios):
        print(warning, file=sys.stderr)
    if options.jobs < 1:
        raise UsageError(f"-j: expected at least 1, found {options.jobs}.")
    if options.repeat < 1:
        raise UsageError(f"--repeat: expected at least 1, found {options.repeat}.")
    _make_writable(options.out)
    sys.path.insert(0, os.getcwd())  # where a user's own target is
    targets = sorted({scenario.target or options.target for scenario in scenarios})
    parts = default_parts(options.target, scenarios, gpus)
    code = run(_run_all(scenarios, parts, targets, options, launch))
    for each in left_out:
        print(f"left out: {each.name}: {each.reason}")
    return code


def would_run(arguments: Sequence[str], num_gpus: int) -> tuple[list[Scenario], list[LeftOut]]:
    """Return what ``run`` with these arguments runs on a machine with so many GPUs, and leaves out.

    Raises:
        UsageError: a file has errors, nothing is selected, or the options contradict each other.
    """
    return _choose(_parser().parse_args(["run", *arguments]), num_gpus)


def _choose(options: argparse.Namespace, num_gpus: int) -> tuple[list[Scenario], list[LeftOut]]:
    loaded = _load(options)
    if options.shard is not None:
        loaded = Shard.parse(options.shard).of(loaded)
    scenarios, left_out = choose(loaded, options.engines)
    if options.device == CPU:
        return scenarios, left_out
    if options.engines not in ON_REAL:
        raise UsageError(
            f"--device cuda: expected --engines {' or '.join(ON_REAL)}, as fake engines have no "
            f"GPU, found {options.engines}. Add it."
        )
    scenarios, too_large = placeable(scenarios, num_gpus)
    return scenarios, left_out + too_large


def _plan(scenarios: list[Scenario], options: argparse.Namespace) -> Plan:
    """Return what is known of a run before it begins; an earlier one in its folder tells more."""
    from harness.reporting.run_folder import earlier_seconds
    from reports.eta import Plan

    return Plan(
        jobs=options.jobs,
        limits_s={scenario.name: scenario.limit_s for scenario in scenarios},
        earlier_s=earlier_seconds(options.out, [scenario.name for scenario in scenarios]),
    )


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


def _begin(scenarios: list[Scenario], options: argparse.Namespace) -> RunInfo:
    from harness.reporting.run_folder import Asked, begin_run

    asked = [Asked(name=s.name, path=str(s.path), proves=s.proves) for s in scenarios]
    return begin_run(
        options.out,
        asked,
        command=options.words,
        rerun_options=_again(options),
        rounds=options.repeat,
    )


async def _run_all(
    scenarios: list[Scenario],
    parts: Parts,
    targets: list[str],
    options: argparse.Namespace,
    launch: Launch,
) -> int:
    import asyncio

    from rich.console import Console

    from harness.authoring.repeat import Rounds
    from harness.target_check import check_targets
    from reports.closing import close_run
    from reports.differences import compare
    from reports.live import make_display

    console = Console(highlight=False)
    plain = options.plain or bool(os.environ.get("CI"))
    planned = partial(_plan, scenarios, options)
    display = make_display(console, plain, options.quiet, _again(options), planned)
    begun_s = time.monotonic()
    info: RunInfo | None = None  # nothing is left of a run whose targets cannot be imported
    rounds = Rounds(options.repeat, options.out)
    interrupted = False
    failure: LauncherError | None = None

    async def run() -> None:
        nonlocal info
        async with launch(parts.preload) as launcher:
            await check_targets(launcher, targets)
            info = _begin(scenarios, options)
            display.begin(len(scenarios) * options.repeat)
            try:
                await rounds.run(launcher, parts, scenarios, jobs=options.jobs, display=display)
            finally:
                display.end()

    running = asyncio.create_task(run())
    with _cancelled_by_signals(running):
        try:
            await running
        except asyncio.CancelledError:
            interrupted = True
        except LauncherError as error:
            if not rounds.worst():
                raise
            failure = error  # what had ended is worth its reports
    found = rounds.worst()
    results = [found[s.name] for s in scenarios if s.name in found]
    written = close_run(
        results,
        console,
        options.out,
        info or _begin(scenarios, options),
        ended=failure is None and not interrupted,
        elapsed_s=time.monotonic() - begun_s,
        num_not_run=len(scenarios) - len(results),
        quiet=options.quiet,
    )
    for line in rounds.lines(list(found)):
        console.print(line, markup=False, soft_wrap=True)
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
    import asyncio

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


def _again(options: argparse.Namespace) -> list[str]:
    """Return the options that a command to run one scenario again needs."""
    engines = [] if options.engines == AS_WRITTEN else ["--engines", options.engines]
    target = [] if options.target == DEFAULT else ["--target", shlex.quote(options.target)]
    return [*engines, *_device(options), *target]


def _device(options: argparse.Namespace) -> list[str]:
    return [] if options.device == CPU else ["--device", options.device]


if __name__ == "__main__":
    sys.exit(main())
