"""The shipped scenarios: they load, prove something, and cover what they claim to cover."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from harness.fault_points import FAULT_POINTS
from harness.faults import FAULTS
from harness.scenario import Scenario
from harness.scenario_file import LoadedFile, discover, load_file

CATALOGUE = Path(__file__).parents[2] / "scenarios"
FILES = [load_file(path) for path in discover([CATALOGUE])]
SCENARIOS = [scenario for file in FILES for scenario in file.scenarios]
TRANSPORTS = ("ipc", "nccl")
STEPS = ("engine.start", "engine.update", "engine.finish")


@pytest.mark.parametrize("file", FILES, ids=[str(f.path.relative_to(CATALOGUE)) for f in FILES])
def test_loads(file: LoadedFile) -> None:
    """Every shipped file loads without an error, and is short."""
    assert [str(error) for error in file.errors] == []
    assert len(file.path.read_text().splitlines()) <= 30


def test_names_are_unique() -> None:
    """No two scenarios share a name."""
    repeated = [name for name, n in Counter(s.name for s in SCENARIOS).items() if n > 1]
    assert repeated == []


def test_size() -> None:
    """The whole catalogue stays small enough to run in three minutes, with few control runs."""
    assert len(SCENARIOS) <= 380
    assert len({scenario.control_key() for scenario in SCENARIOS}) <= 130


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS])
def test_proves_something(scenario: Scenario) -> None:
    """A scenario says one sentence, and does something to the run or tolerates that it does not."""
    assert scenario.proves.endswith(".")
    assert scenario.faults or scenario.restarts or scenario.tolerates


@pytest.mark.parametrize("kind", FAULTS)
def test_every_kind_strikes_somewhere(kind: str) -> None:
    """Each fault kind has a scenario."""
    assert any(fault.kind == kind for scenario in SCENARIOS for fault in scenario.faults)


def _cells(**wanted: object) -> list[Scenario]:
    """Return the scenarios whose first fault, or which themselves, have all these values."""
    return [
        scenario
        for scenario in SCENARIOS
        if scenario.faults
        and all(
            getattr(scenario.faults[0], key, getattr(scenario, key, None)) == value
            for key, value in wanted.items()
        )
    ]


@pytest.mark.parametrize("at", STEPS)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("nth", [(1,), "always"], ids=["once", "always"])
def test_the_table_of_the_first_pull_request(at: str, transport: str, nth: object) -> None:
    """Start, update and finish fail once and always, on either transport, also of the draft."""
    outcome = "raised" if nth == "always" else "resumed"
    cells = _cells(kind="reject", at=at, transport=transport, nth=nth)
    assert outcome in [s.expectation(max(s.faults[0].push, 1)).outcome for s in cells]
    if nth == (1,) or transport == "nccl":
        assert any(scenario.faults[0].session == "draft" for scenario in cells)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "unpacked"])
@pytest.mark.parametrize("num_engines", [1, 2])
def test_topologies_of_the_table(packed: bool, num_engines: int) -> None:
    """Failures are shown with one and two engines, packed and unpacked."""
    assert any(
        scenario.packed == packed and scenario.engines.count == num_engines
        for scenario in SCENARIOS
    )


@pytest.mark.parametrize("point", [p for p in FAULT_POINTS if p.split(".")[0] != "rank"])
def test_engine_points_that_a_push_visits(point: str) -> None:
    """Every point that a push visits, bar the reads, is struck somewhere."""
    not_part = {
        "engine.shutdown", "engine.version", "engine.checksum", "engine.is_paused", "engine.sleep",
        "engine.wake_up", "engine.probe", "engine.world_size", "engine.health",
        "engine.completion",
    }  # fmt: skip
    struck = {fault.at for scenario in SCENARIOS for fault in scenario.faults}
    assert point in struck or point in not_part


def test_recovery_rules() -> None:
    """Replies shift at several workers under both session rules, and none of our scenarios gives
    up there; an NCCL update that fails on some engines alone is never recovered in full, since a
    receiver whose sender has left cannot be freed."""
    recovered = {
        scenario.engines.profile
        for scenario in SCENARIOS
        if scenario.engines.workers > 1 and scenario.target is None and scenario.faults
        for push in range(1, scenario.num_pushes + 1)
        if scenario.expectation(push).outcome == "resumed"
        and scenario.expectation(push).attempts == 2
    }
    assert recovered == {"vllm-0.32", "vllm-next"}
    for scenario in SCENARIOS:
        for fault in scenario.faults:
            at_update = fault.at in ("engine.update", "worker.receive", "worker.load")
            if scenario.transport == "nccl" and at_update and fault.kind != "slow":
                outcome = scenario.expectation(max(fault.push, 1)).outcome
                everywhere = fault.index == "all" or scenario.engines.count == 1
                assert everywhere or outcome in ("raised", "degraded"), scenario.name
