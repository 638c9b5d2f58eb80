"""Every field that a scenario file may have changes something: the model is walked to prove it.

A new field fails `test_every_field_has_an_effect` until it has a line in `EFFECTS`, and a line
holds only where changing the field changes what its channel shows.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from dry_run import plan
from pydantic import BaseModel
from verdicts.observed import Oracle, make_run

from harness.authoring.explain import explain
from harness.engine_choice import move
from harness.faults import FAULTS
from harness.json_schema_fields import item_model
from harness.scenario import Scenario
from harness.scenario_file import load_file
from harness.scenario_values import Section
from harness.verdicts.judge import judge

Fields = Mapping[str, Any]
BASE: Fields = {"proves": "It holds.", "transport": "ipc", "expect": {"outcome": "resumed"}}

# ---- where an effect may show ----


def _plan(scenario: Scenario, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a run would do: the config of every process, commands, limits, restarts, requests."""
    return plan(scenario, folder, monkeypatch)


def _verdict(scenario: Scenario, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """How one run is judged beside its control, which went just as well."""
    run = make_run()
    result = judge(scenario, run, control=run, oracle=Oracle(), journal=folder / "journal")
    return f"{result.verdict} {result.sentence} {result.checks}"


def _moved(scenario: Scenario, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What ``--engines vllm-next`` makes of it."""
    return repr(move(scenario, "vllm-next"))


def _story(scenario: Scenario, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What ``resync-chaos explain`` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        explain([scenario])
    return printed.getvalue()


def _fault(kind: str, at: str = "engine.start", **fields: Any) -> dict[str, Any]:
    address = {"rank": 0} if at.startswith("rank.") else {"engine": 0}
    return {"faults": [{"kind": kind, "at": at, **address, **fields}]}


def _expect(**fields: Any) -> dict[str, Any]:
    return {"expect": {"outcome": "resumed", **fields}}


TWO = {"engines": {"count": 2, "workers": 2}, "trainer": {"ranks": 4}, "pushes": 2, "draft": True}
RAISED = {"outcome": "raised"}

Channel = Callable[[Any, Path, pytest.MonkeyPatch], str]
# Field -> the channel that shows it, and two sets of fields that differ in it alone.
# fmt: off
EFFECTS: Mapping[str, tuple[Channel, Fields, Fields]] = {
    "proves":                    (_plan, {}, {"proves": "It holds again."}),
    "source":                    (_story, {}, {"source": "https://example.org/1"}),
    "trainer.ranks":             (_plan, {"trainer": {"ranks": 2}}, {"trainer": {"ranks": 4}}),
    "trainer.pipeline_parallel": (_plan, {"trainer": {"ranks": 4, "tensor_parallel": 2}},
                                  {"trainer": {"ranks": 4, "tensor_parallel": 2,
                                               "pipeline_parallel": 2}}),
    "trainer.expert_parallel":   (_plan, {"trainer": {"ranks": 4, "tensor_parallel": 2}},
                                  {"trainer": {"ranks": 4, "tensor_parallel": 2,
                                               "expert_parallel": 2}}),
    "trainer.senders":           (_plan, {"trainer": {"ranks": 4}},
                                  {"trainer": {"ranks": 4, "senders": "slots"}}),
    "trainer.send_loop":         (_plan, {}, {"trainer": {"send_loop": "vllm"}}),
    "trainer.tensor_parallel":   (_plan, {}, {"trainer": {"tensor_parallel": 1}}),
    "engines.count":             (_plan, {}, {"engines": {"count": 2}}),
    "engines.workers":           (_plan, {}, {"engines": {"workers": 2}}),
    "engines.kind":              (_plan, {}, {"engines": {"kind": "vllm"}}),
    "engines.profile":           (_plan, {}, {"engines": {"profile": "vllm-next"}}),
    "transport":                 (_plan, {}, {"transport": "nccl"}),
    "packed":                    (_plan, {}, {"packed": False}),
    "draft":                     (_plan, {}, {"draft": True}),
    "timeouts.init_s":           (_plan, {}, {"timeouts": {"init_s": 9}}),
    "timeouts.request_s":        (_plan, {}, {"timeouts": {"request_s": 9}}),
    "timeouts.process_group_s":  (_plan, {}, {"timeouts": {"process_group_s": 29}}),
    "timeouts.rendezvous_s":     (_plan, {}, {"timeouts": {"rendezvous_s": 4}}),
    "seed":                      (_plan, {}, {"seed": 2}),
    "pushes":                    (_plan, {}, {"pushes": 2}),
    "target":                    (_plan, {}, {"target": "mine:build"}),
    "target_options":            (_plan, {}, {"target_options": {"strict": True}}),
    "tolerates":                 (_verdict, {}, {"tolerates": "nothing is injected"}),
    "waive":                     (_verdict, {}, {"waive": {"clean_push": "it is closed"}}),
    "breaks":                    (_verdict, {}, {"breaks": ["clean_push"]}),
    "only_as_written":           (_moved, {}, {"only_as_written": {"vllm-next": "it is old"}}),
    "deadline_s":                (_plan, {}, {"deadline_s": 60}),
    "faults.kind":               (_plan, _fault("hang"), _fault("disconnect")),
    "faults.at":                 (_plan, _fault("hang"), _fault("hang", "engine.finish")),
    "faults.engine":             (_plan, TWO | _fault("hang"), TWO | _fault("hang", engine=1)),
    "faults.rank":               (_plan, _fault("hang", "rank.gather"),
                                  _fault("hang", "rank.gather", rank=1)),
    "faults.worker":             (_plan, TWO | _fault("hang", "worker.load"),
                                  TWO | _fault("hang", "worker.load", worker=1)),
    "faults.push":               (_plan, TWO | _fault("hang"), TWO | _fault("hang", push=2)),
    "faults.nth":                (_plan, _fault("hang"), _fault("hang", nth=[1, 3])),
    "faults.session":            (_plan, TWO | _fault("hang"),
                                  TWO | _fault("hang", session="draft")),
    "faults.tensor":             (_plan, _fault("hang", "worker.load"),
                                  _fault("hang", "worker.load", tensor="lm_head.*")),
    "faults.name":               (_plan, _fault("hang", "rank.step"),
                                  _fault("hang", "rank.step", name="agree.*")),
    "faults.required":           (_verdict, _fault("hang"), _fault("hang", required=False)),
    "restarts.what":             (_plan, {"restarts": [{"what": "trainer", "before_push": 1}]},
                                  {"restarts": [{"what": "engine", "engine": 0,
                                                 "before_push": 1}]}),
    "restarts.engine":           (_plan, TWO | {"restarts": [{"what": "engine", "engine": 0,
                                                              "before_push": 1}]},
                                  TWO | {"restarts": [{"what": "engine", "engine": 1,
                                                       "before_push": 1}]}),
    "restarts.before_push":      (_plan, TWO | {"restarts": [{"what": "trainer",
                                                              "before_push": 1}]},
                                  TWO | {"restarts": [{"what": "trainer", "before_push": 2}]}),
    "before_connect.engine":     (_plan, TWO | {"before_connect": [{"request": "pause"}]},
                                  TWO | {"before_connect": [{"request": "pause", "engine": 1}]}),
    "before_connect.request":    (_plan, {"before_connect": [{"request": "pause"}]},
                                  {"before_connect": [{"request": "start"}]}),
    "expect.outcome":            (_verdict, {}, {"expect": RAISED}),
    "expect.attempts":           (_verdict, {}, _expect(attempts=1)),
    "expect.connect_attempts":   (_verdict, {}, _expect(connect_attempts=1)),
    "expect.retries":            (_verdict, {}, _expect(retries=0)),
    "expect.version":            (_verdict, {}, _expect(version="1")),
    "expect.generation":         (_verdict, {}, _expect(generation="running")),
    "expect.bytes":              (_verdict, {}, _expect(bytes="committed")),
    "expect.error":              (_verdict, {"expect": RAISED},
                                  {"expect": RAISED | {"error": "refused"}}),
    "expect.names_engine":       (_verdict, {"expect": RAISED},
                                  {"expect": RAISED | {"names_engine": 0}}),
    "expect.stall":              (_verdict, {}, _expect(stall="slow")),
    # Options of kinds reach the process that strikes; what they do there is in faults/test_kinds.
    "freeze.process":            (_plan, _fault("freeze"), _fault("freeze", process="core")),
    "kill.process":              (_plan, _fault("kill"), _fault("kill", process="core")),
    "lie.body":                  (_plan, _fault("lie", body={}), _fault("lie", body={"a": 1})),
    "raise.message":             (_plan, _fault("raise", "worker.load"),
                                  _fault("raise", "worker.load", message="no")),
    "reject.status":             (_plan, _fault("reject"), _fault("reject", status=400)),
    "reject.text":               (_plan, _fault("reject"), _fault("reject", text="no")),
    "reply_lost.silent":         (_plan, _fault("reply_lost"), _fault("reply_lost", silent=True)),
    "slow.seconds":              (_plan, _fault("slow", seconds=1), _fault("slow", seconds=2)),
    "slow.jitter":               (_plan, _fault("slow", seconds=1),
                                  _fault("slow", seconds=1, jitter=0.5)),
}
# fmt: on


def _walk(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield every field of a mapping, and of the mappings in it, by its dotted name."""
    for name, field in model.model_fields.items():
        inner: Any = item_model(model, name) or field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from _walk(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _all_fields() -> list[str]:
    options = (f"{kind}.{name}" for kind, model in FAULTS.items() for name in model.model_fields)
    return [*_walk(Scenario), *options]


def _load(fields: Fields, folder: Path) -> Scenario | None:
    path = folder / "one.yaml"
    path.write_text(json.dumps({**BASE, **fields}))
    return next(iter(load_file(path).scenarios), None)


def test_every_field_has_an_effect() -> None:
    """No field is accepted without a line that proves its effect, and no line is left over."""
    assert sorted(EFFECTS) == sorted(_all_fields())


@pytest.mark.parametrize("field", EFFECTS)
def test_effect(field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two scenarios that differ in one field alone differ in what the field's channel shows."""
    channel, before, after = EFFECTS[field]
    shown = []
    for fields in (before, before, after):
        scenario = _load(fields, tmp_path)
        assert scenario is not None, load_file(tmp_path / "one.yaml").errors
        shown.append(channel(scenario, tmp_path, monkeypatch))
    assert shown[0] == shown[1]  # nothing else moves it
    assert shown[0] != shown[2]


def test_the_walk_sees_new_fields() -> None:
    """A field that is added anywhere is walked over, also in a new mapping or a list of them."""

    class Inner(Section):
        here: int = 1

    class Wider(Scenario):
        new: int = 1
        one: Inner = Inner()
        several: tuple[Inner, ...] = ()

    added = set(_walk(Wider)) - set(_walk(Scenario))
    assert added == {"new", "one.here", "several.here"}


def test_a_channel_that_shows_nothing_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field that is read nowhere shows in no channel: ``source`` does not change a run."""
    channels = (_plan, _verdict)
    for channel in channels:
        shown = {
            channel(_load(fields, tmp_path), tmp_path, monkeypatch)
            for fields in ({}, {"source": "https://example.org/1"})
        }
        assert len(shown) == 1
