"""``verdicts.json``: every result with all its fields, for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from harness.contracts import ScenarioResult
from reports import phrases

# Raised when a field changes its meaning or goes; a new field keeps the number.
SCHEMA_VERSION = 1


def write(results: Sequence[ScenarioResult], out_dir: Path) -> Path:
    """Write ``verdicts.json`` into ``out_dir``, which is made if needed, and return its path.

    The file is ``{"schema_version", "counts": {verdict: n}, "scenarios": [...]}``; a scenario has
    the fields of `ScenarioResult`, sorted by name. It is ASCII: what an engine said keeps every
    character, as JSON escapes.

    Raises:
        OSError: ``out_dir`` is not writable.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    document = {
        "schema_version": SCHEMA_VERSION,
        "counts": phrases.counts(results),
        "scenarios": [_as_json(result) for result in sorted(results, key=lambda each: each.name)],
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
