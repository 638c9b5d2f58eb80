"""Which scenarios of a run get real engines, and under which names."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from real_runs import make_scenario

from harness.engine_choice import LeftOut, choose, move, moved_name, name_in_file, pairs
from harness.errors import UsageError
from harness.parts import default_parts, require_vllm
from harness.scenario import Scenario
from vllm_engine import server

NAME = "session/one_failure[ipc]"


def _engines(scenarios: list[Scenario]) -> dict[str, str]:
    return {scenario.name: scenario.engines.kind for scenario in scenarios}


def test_choices() -> None:
    """As written changes nothing; the others move, or add, what real engines can be asked for."""
    plain, real = make_scenario(NAME), make_scenario("real", engines={"kind": "vllm"})
    draft = make_scenario("draft", draft=True)
    given = [plain, real, draft]
    no_draft = LeftOut(
        "draft",
        "expected false, since the real engines serve a model without a draft, found true. "
        "Leave the key out, or use kind: fake.",
    )
    moved = {"session/one_failure@vllm[ipc]": "vllm"}
    as_written = {NAME: "fake", "real": "vllm", "draft": "fake"}
    for choice, engines, left_out in (
        ("as-written", as_written, []),
        ("vllm", moved | {"real": "vllm"}, [no_draft]),
        ("both", as_written | moved, [no_draft]),
    ):
        chosen, without = choose(given, choice)
        assert (_engines(chosen), without) == (engines, left_out), choice


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"only_as_written": {"vllm": "vLLM says no"}}, "vLLM says no"),
        ({"engines": {"workers": 4}}, "expected 1 to 2, since kind is vllm, found 4"),
        ({"engines": {"profile": "vllm-next"}}, "expected vllm-0.32, the rules that it has"),
    ],
)
def test_left_out(fields: dict[str, Any], why: str) -> None:
    """A scenario that makes no sense on real engines says why."""
    found = move(make_scenario(**fields), "vllm")
    assert isinstance(found, LeftOut)
    assert found.reason.startswith(why)


def test_a_moved_scenario_is_the_same_but_for_its_engines() -> None:
    """So that a difference between two verdicts is one between the engines."""
    scenario = make_scenario(NAME)
    moved = move(scenario, "vllm")
    assert isinstance(moved, Scenario)
    assert (moved.name, moved.path) == (moved_name(NAME, "vllm"), scenario.path)
    assert moved.model_dump(exclude={"engines"}) == scenario.model_dump(exclude={"engines"})
    assert moved.control_key() != scenario.control_key()


def test_pairs() -> None:
    """Only what ran on both is compared."""
    names = ["a/b@vllm[x]", "a/b[x]", "c@vllm", "d"]
    assert pairs(names) == [("a/b[x]", "a/b@vllm[x]")]


def test_vllm_is_imported_only_where_it_is_asked_for() -> None:
    """It costs some twelve seconds."""
    loop = make_scenario(trainer={"ranks": 2, "tensor_parallel": 2, "send_loop": "vllm"})
    without = default_parts(scenarios=[make_scenario()]).preload
    assert not [module for module in without if module.startswith("vllm")]
    real = default_parts(scenarios=[make_scenario(engines={"kind": "vllm"})])
    assert {*server.PRELOAD, "vllm_engine.gateway", "vllm_engine.trainer"} <= set(real.preload)
    assert real.preload[: len(without)] == without
    assert "vllm_engine.trainer" in default_parts(scenarios=[loop]).preload


def test_missing_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra and the session that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    require_vllm([make_scenario()])
    with pytest.raises(UsageError) as caught:
        require_vllm([make_scenario("real", engines={"kind": "vllm"}), make_scenario()])
    assert str(caught.value) == (
        "real: expected vLLM to be installed (engines.kind or trainer.send_loop is vllm), found "
        "none. Install the extra with `pip install -c constraints.txt -e '.[harness,vllm]'`, or "
        "let `nox -s real_engine` do all of it."
    )


def test_next_rules() -> None:
    """The whole catalogue runs under the rules that vLLM moves to, but for what says why not."""
    plain = make_scenario(NAME)
    already = make_scenario("next", engines={"profile": "vllm-next"})
    stays = make_scenario("stays", only_as_written={"vllm-next": "it is about today's rules"})
    chosen, left_out = choose([plain, already, stays], "vllm-next")
    assert {s.name: s.engines.profile for s in chosen} == {
        "session/one_failure@vllm-next[ipc]": "vllm-next",
        "next": "vllm-next",
    }
    assert left_out == [LeftOut("stays", "it is about today's rules")]


def test_names_in_files() -> None:
    """The command that runs a moved scenario again finds it in its file."""
    for choice in ("vllm", "vllm-next"):
        assert name_in_file(moved_name(NAME, choice)) == NAME
