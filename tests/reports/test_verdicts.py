"""``verdicts.json``: loses nothing, and keeps to its published schema."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from sample_results import FAILING
from sample_runs import make_run, unfinished

from harness.contracts import ScenarioResult
from harness.reporting.run_folder import Run
from reports import verdicts
from reports.stories import Stories

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "schemas/verdicts.schema.json").read_text(encoding="utf-8")
)


def read(run: Run, out_dir: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        verdicts.write(run, Stories(), out_dir).read_text("ascii")
    )
    jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft202012Validator)
    return document


def test_loses_nothing(tmp_path: Path) -> None:
    """Every field of a result comes back from the file, control characters too."""
    (found,) = read(make_run([FAILING]), tmp_path)["scenarios"]
    assert set(found) == {field.name for field in dataclasses.fields(ScenarioResult)}
    assert found["engines"] == [dataclasses.asdict(engine) for engine in FAILING.engines]
    assert found["checks"] == [dataclasses.asdict(check) for check in FAILING.checks]
    assert found["journal"] == str(FAILING.journal)


def test_keeps_to_its_schema(tmp_path: Path) -> None:
    """A whole run, one that died and one that never began anything are all valid."""
    assert read(make_run(), tmp_path)["counts"] == {"pass": 4, "fail": 1, "hang": 1, "invalid": 1}
    died = make_run([], unfinished=(unfinished(tmp_path / "journal.jsonl"),), not_run=("late/b",))
    assert [each["name"] for each in read(died, tmp_path)["unfinished"]] == ["late/pause"]
    assert read(Run(folder=tmp_path), tmp_path)["run"]["elapsed_s"] is None


def test_the_schema_names_every_field() -> None:
    """A field that is added to a result is published, too."""
    published = set(SCHEMA["$defs"]["scenario"]["properties"])
    assert published == {field.name for field in dataclasses.fields(ScenarioResult)}


@pytest.mark.parametrize(
    ("key", "value"), [("verdict", "green"), ("attempts", ["2"]), ("seconds", -1)]
)
def test_the_schema_can_reject(key: str, value: object, tmp_path: Path) -> None:
    """A verdict that is none, attempts that are no numbers and a negative time are refused."""
    document = read(make_run([FAILING]), tmp_path)
    document["scenarios"][0][key] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)
