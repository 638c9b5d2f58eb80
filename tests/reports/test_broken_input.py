"""Whatever a journal or a result holds, every report is written: fuzzed from fixed seeds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from sample_results import HANGING, make_result
from sample_runs import CALM_EVENTS, EVENTS, HOSTILE, event, lines, write_journal

from harness.reporting.result_file import RESULT, Details, write_result
from harness.reporting.run_folder import Asked, begin_run, read_run
from reports import REPORTS, write_reports

VALUES = [None, 0, -1, 1e308, "x", HOSTILE, [], {}, [1, "a"], {"a": 1}, True, "1" * 3000]
TABLE = [{"who": "rank 0", "at": "is in a gather", "waits_for": "ranks 1-3, which are elsewhere"}]
HALT = event(11.9, "harness", "halt", kind="deadlock", sentence="a deadlock", table=TABLE)
PUSH = {
    "number": 1, "closing": False, "outcome": "raised", "version": "1", "expected_weights": "f1",
    "ranks": {"0": {"ending": "raised", "error": "x", "error_type": "E", "version": None,
                    "result": {"causes": [[{"rank": 0}]], "engines": [{"index": 0}]}}},
    "after": [{"index": 0, "fingerprint": "f1", "sessions": [True], "stuck": False}],
}  # fmt: skip
SCENARIO = {
    "trainer": {"ranks": 2, "tensor_parallel": 2}, "engines": {"count": 1, "workers": 2},
    "transport": "ipc", "pushes": 1, "timeouts": {"init_s": 1.0}, "seed": 1,
    "faults": [{"kind": "reject", "at": "engine.update", "nth": [1]}],
    "restarts": [{"what": "engine", "engine": 0}],
}  # fmt: skip


def mutated(value: Any, chance: random.Random, odds: float) -> Any:
    """Return JSON in which some values are others, and some keys are gone."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if chance.random() > odds / 4}
        return {
            key: chance.choice(VALUES) if chance.random() < odds else mutated(item, chance, odds)
            for key, item in kept.items()
        }
    if isinstance(value, list):
        return [mutated(item, chance, odds) for item in value]
    return chance.choice(VALUES) if chance.random() < odds / 2 else value


def broken_bytes(events: list[Any], chance: random.Random) -> bytes:
    """Return a journal with strange events, flipped bytes, and perhaps its end missing."""
    odds = chance.choice([0.0, 0.02, 0.2])
    data = bytearray(lines([mutated(each, chance, odds) for each in events]))
    for _ in range(chance.choice([0, 0, 10])):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])


@pytest.mark.parametrize("seed", range(40))
def test_every_report_is_written(seed: int, tmp_path: Path) -> None:
    """Nothing that a file of a run can hold keeps a report from being written."""
    chance = random.Random(seed)
    asked = [Asked(name="session/a", path="a.yaml", proves="It works.")]
    begin_run(tmp_path, asked, command=("run",), rerun_options=())
    journal = write_journal(tmp_path / "session/a")
    write_journal(tmp_path / "controls-runs/k", CALM_EVENTS)
    journal.write_bytes(broken_bytes([*EVENTS, HALT], chance))
    fields = vars(make_result("session/a")) | {"journal": journal, "evidence": HANGING.evidence}
    details = Details(scenario=SCENARIO, control="controls-runs/k", pushes=(PUSH,))
    write_result(make_result(**fields), details)
    path = journal.with_name(RESULT)
    odds = chance.choice([0.0, 0.002, 0.05])
    path.write_text(json.dumps(mutated(json.loads(path.read_text()), chance, odds)))
    written = write_reports(read_run(tmp_path), tmp_path / "out")
    assert len(written) == len(REPORTS)
    json.loads((tmp_path / "out/trace.json").read_text("utf-8"))
