"""``verdicts.json``: every result with all its fields, for programs.

Its schema is published in ``schemas/verdicts.schema.json``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import orjson

from harness.contracts import Json, ScenarioResult
from harness.reporting.run_folder import Run
from reports import phrases
from reports.stories import Stories

# Raised when a field changes its meaning or goes; a new field keeps the number.
SCHEMA_VERSION = 1
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def write(run: Run, stories: Stories, out_dir: Path) -> Path:
    """Write ``verdicts.json`` into ``out_dir``, which is made if needed, and return its path.

    A scenario has the fields of `ScenarioResult`, sorted by name; those without a verdict stand
    apart. The file is ASCII: what an engine said keeps every character, as JSON escapes.

    Raises:
        OSError: ``out_dir`` is not writable.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    document = {
        "schema_version": SCHEMA_VERSION,
        "run": {
            "command": run.info.command,
            "began": run.info.began,
            "elapsed_s": run.info.elapsed_s,
            "versions": dict(run.info.versions),
        },
        "counts": {str(each): count for each, count in phrases.counts(run.results).items()},
        "scenarios": [_as_json(r) for r in sorted(run.results, key=lambda each: each.name)],
        "unfinished": [
            vars(each) | {"journal": str(each.journal)}
            for each in sorted(run.unfinished, key=lambda each: each.name)
        ],
        "not_run": sorted(run.not_run),
    }
    path = out_dir / "verdicts.json"
    path.write_bytes(_dumped(document) + b"\n")
    return path


def _dumped(document: Json) -> bytes:
    """Return indented JSON in ASCII: what ``json.dumps`` gives, at a tenth of its cost."""
    try:
        text = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
    except TypeError:  # a lone surrogate, which engines print
        text = json.dumps(document, indent=2)
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text).encode("ascii")


def _as_json(result: ScenarioResult) -> dict[str, object]:
    return vars(result) | {
        "engines": [vars(engine) for engine in result.engines],
        "checks": [vars(check) for check in result.checks],
        "journal": str(result.journal),
        "evidence": dict(result.evidence),
    }
