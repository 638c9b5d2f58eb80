"""The commands that print what the scenario language is: its JSON Schema and its reference page."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.folder_defaults import NAME as DEFAULTS
from harness.scenario_file import discover

MARK = "# yaml-language-server: $schema="


def add_commands(commands: Any) -> None:
    """Add ``schema`` and ``reference`` to the command line's commands."""
    schema = commands.add_parser(
        "schema",
        help="Print the JSON Schema of scenario files, for editors.",
        description="Print the JSON Schema of scenario files, for editors and validators.",
    )
    schema.add_argument(
        "--defaults", action="store_true", help="that of a folder's defaults.yaml instead"
    )
    reference = commands.add_parser(
        "reference",
        help="Print the reference page of the scenario language.",
        description="Print the reference page of the scenario language, as Markdown.",
    )
    for parser, command in ((schema, _schema), (reference, _reference)):
        parser.add_argument("--out", type=Path, metavar="FILE", help="write it there instead")
        parser.set_defaults(command=command)
    schema.add_argument(
        "--mark",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="with --out: lead editors to that schema, by the first line of each file of these "
        "paths",
    )


def schema_text(*, defaults: bool = False) -> str:
    """Return the JSON Schema as the shipped files hold it."""
    from harness.json_schema import defaults_schema, scenario_schema

    schema = defaults_schema() if defaults else scenario_schema()
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _schema(options: argparse.Namespace) -> int:
    if options.mark and options.out is None:
        raise UsageError("--mark: expected --out beside it, found none. Say where the schema is.")
    code = _put(schema_text(defaults=options.defaults), options.out)
    for path in _files(options.mark or (), defaults=options.defaults):
        mark(path, options.out)
    return code


def _files(paths: Iterable[Path], *, defaults: bool) -> list[Path]:
    if not defaults:
        return discover(paths) if paths else []
    return [file for path in paths for file in sorted(path.rglob(DEFAULTS))]


def mark(path: Path, schema: Path) -> None:
    """Make the line that leads an editor to the schema the first one of a file.

    A file that has one gets the new one in its place.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        text = path.read_bytes()
        if text.startswith(MARK.encode()):
            text = text.partition(b"\n")[2]
        path.write_bytes(f"{MARK}{os.path.relpath(schema, path.parent)}\n".encode() + text)
    except OSError as error:
        raise UsageError(
            f"{path}: expected a file that can be written to, found {error.strerror}. "
            "Check the path and its rights."
        ) from error


def _reference(options: argparse.Namespace) -> int:
    from harness.reference import reference

    return _put(reference(), options.out)


def _put(text: str, path: Path | None) -> int:
    if path is None:
        sys.stdout.write(text)
        return 0
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--out {path}: expected a file that can be written to, found {error.strerror}. "
            "Choose another with --out."
        ) from error
    return 0
