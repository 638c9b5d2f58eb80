"""One scenario as the runner uses it: addressing, expectations, control runs."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from harness.faults import FAULTS
from harness.scenario import (
    FAULT_SPECS,
    Engines,
    Expectation,
    FaultSpec,
    Restart,
    Scenario,
    StagedRequest,
    TimeoutLimits,
    Trainer,
)


def _scenario(*faults: dict[str, Any], **fields: Any) -> Scenario:
    given: dict[str, Any] = {
        "proves": "It holds.",
        "transport": "ipc",
        "pushes": 1,
        "expect": (Expectation(outcome="resumed"),),
        "faults": tuple(FAULT_SPECS[fault["kind"]](**fault) for fault in faults),
    }
    return Scenario(**given | fields)


FAULT_LIST = (
    {"kind": "reject", "at": "engine.update", "engine": 1, "status": 400, "nth": [2, 3]},
    {"kind": "raise", "at": "worker.load", "engine": "all", "worker": 0, "tensor": "*.k_*"},
    {"kind": "kill", "at": "rank.gather", "rank": 1, "push": 2, "nth": "always"},
    {"kind": "slow", "at": "rank.step", "rank": "all", "name": "agree.*", "seconds": 0.5},
)
# fmt: off
ADDRESSED = [
    # role      index  numbers of the faults
    ("engine",  0,     [1]),
    ("engine",  1,     [0, 1]),
    ("rank",    0,     [3]),
    ("rank",    1,     [2, 3]),
]
# fmt: on


@pytest.mark.parametrize(("role", "index", "numbers"), ADDRESSED)
def test_faults_for(role: Literal["engine", "rank"], index: int, numbers: list[int]) -> None:
    """A process gets its own faults, an engine its workers' too, under their scenario's numbers."""
    found = _scenario(*FAULT_LIST).faults_for(role, index)
    assert [fault["fault"] for fault in found] == numbers


def test_faults_for_is_json() -> None:
    """What a process is given is plain: addressing, selectors, and the kind's own fields."""
    scenario = _scenario(*FAULT_LIST)
    assert scenario.faults_for("engine", 1) == [
        {
            "fault": 0,
            "kind": "reject",
            "at": "engine.update",
            "index": 1,
            "push": 1,
            "nth": [2, 3],
            "where": {},
            "seed": "1:faults.0:engine.1",
            "options": {
                "status": 400,
                "text": "Call to collective_rpc method failed: injected rejection",
            },
        },
        {
            "fault": 1,
            "kind": "raise",
            "at": "worker.load",
            "index": "all",
            "push": 1,
            "nth": [1],
            "where": {"worker": 0, "tensor": "*.k_*"},
            "seed": "1:faults.1:engine.1",
            "options": {"message": "injected failure"},
        },
    ]
    assert scenario.faults_for("rank", 1)[1]["where"] == {"name": "agree.*"}


# fmt: off
PER_ENGINE = [
    # id          expectation                        what          for three engines
    ("unsaid",    {},                                "version",    None),
    ("for-all",   {"version": "2"},                  "version",    ("2", "2", "2")),
    ("each",      {"bytes": ["dirty"] * 2 + ["stuck"]}, "bytes",   ("dirty", "dirty", "stuck")),
    ("mixed",     {"generation": "paused"},          "generation", ("paused",) * 3),
]
# fmt: on


@pytest.mark.parametrize(
    ("given", "what", "found"), [c[1:] for c in PER_ENGINE], ids=[c[0] for c in PER_ENGINE]
)
def test_per_engine(
    given: dict[str, Any],
    what: Literal["version", "generation", "bytes"],
    found: tuple[str, ...] | None,
) -> None:
    """One value holds for every engine, a list has one for each."""
    assert Expectation(outcome="raised", **given).per_engine(what, 3) == found


def test_control() -> None:
    """The control has nothing done to it, must resume, and keeps topology, target and pushes."""
    scenario = _scenario(
        *FAULT_LIST,
        pushes=2,
        transport="nccl",
        target="a.b:build",
        target_options={"mark_dirty": True},
        restarts=(Restart(what="trainer", before_push=2),),
        before_connect=(StagedRequest(request="pause"),),
        expect=(Expectation(outcome="raised"), Expectation(outcome="resumed", attempts=1)),
        waive={"clean_push": "so"},
        breaks=("ranks_agree",),
        deadline_s=3.0,
    )
    control = scenario.control()
    assert (control.faults, control.restarts, control.before_connect) == ((), (), ())
    assert (control.waive, control.breaks, control.deadline_s) == ({}, (), None)
    assert [control.expectation(n) for n in (1, 2)] == [Expectation(outcome="resumed")] * 2
    kept = ("transport", "pushes", "target", "target_options", "trainer", "engines", "timeouts")
    assert all(getattr(control, name) == getattr(scenario, name) for name in kept)
    assert control.name == f"control-{scenario.control_key()}"
    assert control.control_key() == scenario.control_key()


# fmt: off
SHARED = [
    # id           fields that differ                                         one control for both
    ("faults",     {"faults": (FAULT_SPECS["kill"](**FAULT_LIST[2]),)},       True),
    ("words",      {"proves": "Other.", "source": "https://example.org"},     True),
    ("expect",     {"expect": (Expectation(outcome="raised"),)},              True),
    ("tolerates",  {"tolerates": "so", "waive": {"clean_push": "so"}},        True),
    ("restarts",   {"restarts": (Restart(what="trainer", before_push=1),)},   True),
    ("pushes",     {"pushes": 2},                                             False),
    ("trainer",    {"trainer": Trainer(ranks=4)},                             False),
    ("engines",    {"engines": Engines(count=2)},                             False),
    ("transport",  {"transport": "nccl"},                                     False),
    ("packed",     {"packed": False},                                         False),
    ("draft",      {"draft": True},                                           False),
    ("timeouts",   {"timeouts": TimeoutLimits(init_s=1.0)},                   False),
    ("seed",       {"seed": 2},                                               False),
    ("target",     {"target": "a.b:build"},                                   False),
    ("options",    {"target_options": {"strict": True}},                      False),
]
# fmt: on


@pytest.mark.parametrize(("fields", "shared"), [c[1:] for c in SHARED], ids=[c[0] for c in SHARED])
def test_control_key(fields: dict[str, Any], shared: bool) -> None:
    """Scenarios share a control exactly when they differ in what is done and expected alone."""
    assert (_scenario(**fields).control_key() == _scenario().control_key()) == shared


def test_kinds_and_addressing_do_not_overlap() -> None:
    """No kind has a field that the addressing of faults has taken."""
    for kind in FAULTS.values():
        assert not set(kind.model_fields) & set(FaultSpec.model_fields), kind
