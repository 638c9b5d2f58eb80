"""``verdicts.json``: every result with all its fields, for programs.

Its schema is published in ``schemas/verdicts.schema.json``.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from harness.contracts import ScenarioResult
from harness.reporting.run_folder import Run
from reports import phrases
from reports.stories import Stories

# Raised when a field changes its meaning or goes; a new field keeps the number.
SCHEMA_VERSION = 1


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
        "counts": phrases.counts(run.results),
        "scenarios": [_as_json(r) for r in sorted(run.results, key=lambda each: each.name)],
        "unfinished": [
            dataclasses.asdict(each) | {"journal": str(each.journal)}
            for each in sorted(run.unfinished, key=lambda each: each.name)
        ],
        "not_run": sorted(run.not_run),
    }
    path = out_dir / "verdicts.json"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="ascii")
    return path


def _as_json(result: ScenarioResult) -> dict[str, object]:
    fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return fields | {
        "engines": [dataclasses.asdict(engine) for engine in result.engines],
        "checks": [dataclasses.asdict(check) for check in result.checks],
        "journal": str(result.journal),
        "evidence": dict(result.evidence),
    }
