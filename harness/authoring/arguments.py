"""The authoring commands on the command line: their flags, and what each calls.

A command's module is imported when it is called: ``check`` answers an editor, and needs none.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.authoring.questions import QUESTIONS
from harness.scenario import Scenario

Add = Callable[[str, object, str], argparse.ArgumentParser]
Load = Callable[[argparse.Namespace], Sequence[Scenario]]
Commands = argparse._SubParsersAction  # argparse has no public name for it


def add_commands(
    commands: Commands[argparse.ArgumentParser],
    add: Add,
    load: Load,
) -> None:
    """Add the commands of those who write scenarios.

    Args:
        commands: of the command line.
        add: adds a command that takes paths of scenarios, and ``-k``.
        load: returns the scenarios that such a command chose.
    """
    _add_list(add, load)
    _add_explain(add, load)
    _add_new(commands)
    _add_doctor(commands)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add what ``run`` takes for those who are writing a scenario."""
    parser.add_argument("--repeat", type=int, default=1, metavar="N",
                        help="run each so many times; its verdict is the worst of them "
                        "(default: %(default)s)")  # fmt: skip
    parser.add_argument("--watch", action="store_true",
                        help="run again whenever a file is saved, until Ctrl-C")  # fmt: skip


def _add_list(add: Add, load: Load) -> None:
    def run(options: argparse.Namespace) -> int:
        from harness.authoring.listing import list_scenarios

        return list_scenarios(load(options), options)

    parser = add("list", run, "List scenarios: themes, what is done, and how each ended last.")
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="DIR",
                        help="folder of the last run (default: %(default)s)")  # fmt: skip
    parser.add_argument("--plain", action="store_true",
                        help="a line each; the default where there is no terminal")  # fmt: skip


def _add_explain(add: Add, load: Load) -> None:
    def run(options: argparse.Namespace) -> int:
        from harness.authoring.explain import explain

        return explain(load(options))

    add("explain", run, "Tell a scenario's story in words; start nothing.")


def _add_new(commands: Commands[argparse.ArgumentParser]) -> None:
    def run(options: argparse.Namespace) -> int:
        from harness.authoring.new import new

        return new(options)

    text = "Write a scenario file from answers, given as flags or asked for."
    parser = commands.add_parser("new", help=text, description=text)
    parser.set_defaults(command=run)
    parser.add_argument("name", metavar="NAME", help="such as session/finish_refused")
    parser.add_argument("--into", type=Path, metavar="DIR",
                        help="folder that the name is below (default: scenarios, where there is "
                        "one, else the current folder)")  # fmt: skip
    for question in QUESTIONS:
        parser.add_argument(question.flag, dest=f"answer_{question.key}",
                            metavar=question.metavar, help=question.help)  # fmt: skip


def _add_doctor(commands: Commands[argparse.ArgumentParser]) -> None:
    def run(options: argparse.Namespace) -> int:
        from harness.authoring.doctor import doctor

        return doctor(options)

    text = "Say which time-out of a training job fires first in each wait of a push."
    parser = commands.add_parser(
        "doctor",
        help=text,
        description=f"{text} The job's own arguments follow after --. Exit code 10: one fires "
        "before the push has had its time.",
    )
    parser.set_defaults(command=run)
    parser.add_argument("--file", type=Path, metavar="FILE",
                        help="a script with the job's command line, or YAML or JSON with its "
                        "options")  # fmt: skip
    parser.add_argument("--pid", type=int, metavar="PID", help="a running process of the job")
    parser.add_argument("--set", action="append", default=[], dest="given", metavar="NAME=SECONDS",
                        help="a time-out that no flag of the job tells, such as "
                        "gloo_groups=3600")  # fmt: skip
    client = parser.add_mutually_exclusive_group()
    client.add_argument("--without-resync", action="store_true",
                        help="the job pushes with requests that have no time-out")  # fmt: skip
    client.add_argument("--vllm-client", action="store_true",
                        help="the job pushes without resync, with vLLM's own HTTP client, which "
                        "gives a request 300 s")  # fmt: skip
    parser.add_argument("job", nargs="*", metavar="ARGUMENT",
                        help="the job's command line, after --")  # fmt: skip
