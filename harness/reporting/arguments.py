"""The reporting commands on the command line: their flags, and what each calls.

A command's module is imported when it is called: ``check`` answers an editor, and needs none.
"""

from __future__ import annotations

import argparse
from pathlib import Path

Commands = argparse._SubParsersAction  # argparse has no public name for it

SLOWER_RATIO = 1.5
SLOWER_S = 0.5


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add what ``run`` takes for those who read its output in a CI job's log."""
    parser.add_argument("--quiet", action="store_true",
                        help="print only what does not pass, and the counts")  # fmt: skip


def add_commands(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the commands that read a run's folder."""
    _add_report(commands)
    _add_show(commands)
    _add_compare(commands)


def _add_report(commands: Commands[argparse.ArgumentParser]) -> None:
    def run(options: argparse.Namespace) -> int:
        from reports.commands import report

        return report(options)

    text = "Make the reports of a run again, from its folder; of one that died, too."
    parser = commands.add_parser("report", help=text, description=text)
    parser.set_defaults(command=run)
    parser.add_argument("folder", type=Path, metavar="DIR", help="what the run had as --out")
    parser.add_argument("--format", action="append", dest="formats", metavar="NAME",
                        help="only this report; may be given several times: html, junit, "
                        "reproduce, summary, trace, verdicts")  # fmt: skip
    parser.add_argument("-k", dest="pattern", metavar="NAME",
                        help="only scenarios whose name contains NAME")  # fmt: skip
    parser.add_argument("--into", type=Path, metavar="DIR",
                        help="where to write them (default: the run's folder)")  # fmt: skip


def _add_show(commands: Commands[argparse.ArgumentParser]) -> None:
    def run(options: argparse.Namespace) -> int:
        from reports.commands import show

        return show(options)

    text = "Tell one scenario's story as text: what happened, the verdict, the proof."
    parser = commands.add_parser("show", help=text, description=text)
    parser.set_defaults(command=run)
    parser.add_argument("folder", type=Path, metavar="RUN", help="what the run had as --out")
    parser.add_argument("name", metavar="SCENARIO", help="its name, or a part that only it has")


def _add_compare(commands: Commands[argparse.ArgumentParser]) -> None:
    def run(options: argparse.Namespace) -> int:
        from reports.commands import compare

        return compare(options)

    text = "Compare two runs; a regression ends with exit code 10."
    parser = commands.add_parser(
        "compare",
        help=text,
        description=f"{text} Regressions: a verdict that got worse, a new scenario that does not "
        "pass, one that was not finished, and one that is slower by more than noise. Times are "
        "compared after dividing by the median ratio of all scenarios, so that a machine that is "
        "slower as a whole counts for nothing.",
    )
    parser.set_defaults(command=run)
    parser.add_argument("old", type=Path, metavar="OLD", help="folder of the run to compare with")
    parser.add_argument("new", type=Path, metavar="NEW", help="folder of the run to judge")
    parser.add_argument("--slower-ratio", type=float, default=SLOWER_RATIO, metavar="R",
                        help="slower: over R times as long (default: %(default)s)")  # fmt: skip
    parser.add_argument("--slower-s", type=float, default=SLOWER_S, metavar="S",
                        help="and by more than S seconds (default: %(default)s)")  # fmt: skip
