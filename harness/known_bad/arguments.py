"""``known-bad`` on the command line: its flags; what they need is imported when it runs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

Commands = argparse._SubParsersAction  # argparse has no public name for it


def add_commands(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add ``known-bad`` to the command line's commands."""

    def run(options: argparse.Namespace) -> int:
        from harness.known_bad.command import known_bad

        return known_bad(options)

    text = "Run modules that have one thing wrong each; the catalogue must catch every one."
    parser = commands.add_parser(
        "known-bad",
        help=text,
        description=f"{text} Each is run until the first catch, by the scenarios that "
        "conformance/known_bad/catches.yaml names. Exits with 10 where one survives.",
    )
    parser.set_defaults(command=run)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH",
                        help="with --full or --needed: scenario files, or folders of them "
                        "(default: the catalogue)")  # fmt: skip
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--full", action="store_true",
                      help="run every module against every scenario; matrix.json and matrix.md "
                      "say what catches what, and which scenarios catch nothing")  # fmt: skip
    what.add_argument("--needed", action="store_true",
                      help="for each scenario, find a module that it catches, and fail where one "
                      "catches none; needed.yaml says which is tried first, and which are kept "
                      "all the same")  # fmt: skip
    parser.add_argument("--record", action="store_true",
                        help="with --needed: write what was found to conformance/known_bad/"
                        "needed.yaml")  # fmt: skip
    parser.add_argument("-k", dest="pattern", metavar="NAME",
                        help="only modules whose name contains NAME, or matches it as a "
                        "glob")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("out/known_bad"), metavar="DIR",
                        help="where journals and the report go (default: %(default)s)")  # fmt: skip
    parser.add_argument("-j", dest="jobs", type=int, default=(os.cpu_count() or 1) + 1,
                        metavar="N", help="runs at a time (default: %(default)s)")  # fmt: skip
    parser.add_argument("--page", type=Path, metavar="FILE",
                        help="run nothing; write the docs page to FILE")  # fmt: skip
