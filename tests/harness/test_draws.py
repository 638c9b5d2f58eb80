"""What a scenario leaves to chance: decided by its seed, in range, and told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.model_spec import SHAPES, source_tensors
from harness.draws import tensors
from harness.scenario import NUM_EXPERTS, Scenario
from harness.scenario_file import load_file

TEXT = (
    "proves: It holds.\ntransport: ipc\nexpect: {outcome: resumed}\n"
    "engines: {count: 3, workers: 4}\ntrainer: {ranks: 8}\n"
)
FAULTS = (
    "faults:\n"
    "  - {kind: raise, at: worker.load, engine: random, worker: random, tensor: random}\n"
    "  - {kind: kill, at: rank.gather, rank: random}\n"
)


def _load(tmp_path: Path, text: str) -> list[Scenario]:
    path = tmp_path / "one.yaml"
    path.write_text(text)
    loaded = load_file(path)
    assert loaded.errors == ()
    return list(loaded.scenarios)


def test_the_seed_decides(tmp_path: Path) -> None:
    """The same seed draws the same, and over some seeds everything in range is drawn."""
    seeds = f"matrix: {{seed: {list(range(60))}}}\n"
    scenarios = _load(tmp_path, TEXT + FAULTS + seeds)
    assert [s.drawn for s in scenarios] == [s.drawn for s in _load(tmp_path, TEXT + FAULTS + seeds)]
    drawn = [scenario.drawn for scenario in scenarios]
    assert {each["faults.0.engine"] for each in drawn} == {0, 1, 2}
    assert {each["faults.0.worker"] for each in drawn} == {0, 1, 2, 3}
    assert {each["faults.1.rank"] for each in drawn} == set(range(8))
    assert {each["faults.0.tensor"] for each in drawn} == set(tensors("target"))
    assert [scenario.name for scenario in scenarios[:2]] == ["one[0]", "one[1]"]


def test_a_fault_holds_what_was_drawn(tmp_path: Path) -> None:
    """Processes get a number and a name, never the word."""
    (scenario,) = _load(tmp_path, TEXT + FAULTS)
    fault = scenario.faults[0]
    assert scenario.drawn == {
        "faults.0.engine": fault.engine,
        "faults.0.worker": fault.worker,
        "faults.0.tensor": fault.tensor,
        "faults.1.rank": scenario.faults[1].rank,
    }
    assert isinstance(fault.engine, int)
    (given,) = scenario.faults_for("engine", fault.engine)
    assert given["where"] == {"worker": fault.worker, "tensor": fault.tensor}
    assert scenario.named("x", Path("x.yaml")).drawn == scenario.drawn


def test_faults_draw_apart(tmp_path: Path) -> None:
    """Two faults that leave the same to chance do not always draw the same."""
    faults = "faults:\n" + "  - {kind: kill, at: rank.gather, rank: random}\n" * 8
    (scenario,) = _load(tmp_path, TEXT + faults)
    assert len({fault.rank for fault in scenario.faults}) > 1


def test_nothing_is_drawn_without_the_word(tmp_path: Path) -> None:
    """What a file says stays as it is."""
    (scenario,) = _load(
        tmp_path, f"{TEXT}faults:\n  - {{kind: kill, at: rank.gather, rank: all}}\n"
    )
    assert (scenario.drawn, scenario.faults[0].rank) == ({}, "all")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("session", ["target", "draft"])
def test_tensors_are_the_models(session: str, shape: str) -> None:
    """What may be drawn is what the fakes' and the real engines' models have."""
    model = SHAPES[shape]
    sent = source_tensors(draft=session == "draft", shape=model)
    drawn = tensors(session, num_experts=model.num_experts)
    assert sorted(drawn) == sorted(tensor.name for tensor in sent)


def test_a_mixture_of_experts_draws_from_its_own(tmp_path: Path) -> None:
    """Of a model with experts, theirs are drawn too."""
    faults = "faults:\n  - {kind: kill, at: rank.gather, rank: 0, tensor: random}\n"
    trainer = "trainer: {ranks: 4, tensor_parallel: 2, expert_parallel: 2}\n"
    text = TEXT.replace("trainer: {ranks: 8}\n", trainer) + faults
    scenarios = _load(tmp_path, f"{text}matrix: {{seed: {list(range(200))}}}\n")
    drawn = {scenario.drawn["faults.0.tensor"] for scenario in scenarios}
    assert drawn == set(tensors("target", num_experts=NUM_EXPERTS))
