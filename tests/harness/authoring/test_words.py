"""Faults and expectations in words."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.megatron.layout import Layout
from fakes.megatron.roles import Roles
from harness.authoring import words
from harness.fault_points import FAULT_POINTS
from harness.faults import FAULTS
from harness.scenario import FAULT_SPECS, Expectation, StagedRequest, Trainer

# fmt: off
FAULT_CASES = [
    # id, fault, in a few words, in a sentence
    ("request", {"kind": "reject", "at": "engine.finish", "engine": 1, "push": 3},
     "engine 1 answers 500 at engine.finish, push 3",
     "In push 3, the 1st time at engine.finish (POST /finish_weight_update), engine 1 answers "
     "500."),
    ("always", {"kind": "reject", "at": "engine.pause", "engine": "all", "nth": "always"},
     "every engine answers 500 at engine.pause, push 1, every time",
     "In push 1, every time at engine.pause (POST /pause), every engine answers 500."),
    ("several-times", {"kind": "kill", "at": "rank.gather", "rank": 0, "nth": [2, 11, 23]},
     "rank 0 (the sender) is killed at rank.gather, push 1, the 2nd, 11th and 23rd time",
     "In push 1, the 2nd, 11th and 23rd time at rank.gather (before each gather of a tensor's "
     "shards), rank 0 (the sender) is killed."),
    ("connect", {"kind": "raise", "at": "worker.init", "engine": 0, "push": 0},
     "every worker of engine 0 raises at worker.init, the connect",
     "In the connect, the 1st time at worker.init (the worker joins the channel), every worker of "
     "engine 0 raises."),
    ("narrowed", {"kind": "slow", "at": "worker.receive", "engine": 0, "worker": 1, "seconds": 0.5,
                  "session": "draft", "tensor": "lm_*", "required": False},
     "worker 1 of engine 0 is slow by 0.5 s at worker.receive of the draft's session of tensors "
     "like lm_*, push 1",
     "In push 1, the 1st time at worker.receive of the draft's session of tensors like lm_* "
     "(before each tensor (packed: chunk) arrives), worker 1 of engine 0 is slow by 0.5 s. It "
     "need not strike."),
    ("one-tensor", {"kind": "raise", "at": "worker.load", "engine": 0, "tensor": "lm_head.weight"},
     "every worker of engine 0 raises at worker.load of tensor lm_head.weight, push 1",
     "In push 1, the 1st time at worker.load of tensor lm_head.weight (a tensor has arrived and is "
     "about to be loaded), every worker of engine 0 raises."),
    ("one-step", {"kind": "kill", "at": "rank.step", "rank": 1, "name": "agree.start"},
     "rank 1 is killed at rank.step of step agree.start, push 1",
     "In push 1, the 1st time at rank.step of step agree.start (the target under test reports a "
     "step, such as agree.start), rank 1 is killed."),
]
# fmt: on


@pytest.mark.parametrize(
    ("fault", "brief"), [(c[1], c[2]) for c in FAULT_CASES], ids=[c[0] for c in FAULT_CASES]
)
def test_brief(fault: dict[str, Any], brief: str) -> None:
    """A few words say whom, what, where and when."""
    spec = FAULT_SPECS[fault["kind"]].model_validate(fault)
    assert words.brief(spec) == brief


@pytest.mark.parametrize(
    ("fault", "story"), [(c[1], c[3]) for c in FAULT_CASES], ids=[c[0] for c in FAULT_CASES]
)
def test_story(fault: dict[str, Any], story: str) -> None:
    """A sentence says when, where, whom and what."""
    spec = FAULT_SPECS[fault["kind"]].model_validate(fault)
    assert words.story(spec) == story


def test_every_fault_has_words() -> None:
    """Every kind can be told of at every point that it strikes."""
    required = {"slow": {"seconds": 1.0}, "lie": {"body": {}}}
    for kind in FAULTS:
        for at in (p for p in FAULT_POINTS if FAULTS[kind].can_strike(p)):
            whose = "rank" if FAULT_POINTS[at].role == "rank" else "engine"
            fault = {"kind": kind, "at": at, whose: 0, **required.get(kind, {})}
            told = words.story(FAULT_SPECS[kind].model_validate(fault))
            assert told.startswith("In push 1, the 1st time at ")
            assert told.endswith(".")
            assert "()" not in told


# fmt: off
SENDERS = [
    # id, trainer, engines, rank -> whom a fault there strikes
    ("one", {"ranks": 4}, 2, {0: "rank 0 (the sender)", 2: "rank 2"}),
    ("slots", {"ranks": 4, "senders": "slots"}, 2,
     {0: "rank 0 (a sender)", 1: "rank 1", 2: "rank 2 (a sender)"}),
    ("one-slot", {"ranks": 4, "senders": "slots"}, 1, {0: "rank 0 (the sender)", 2: "rank 2"}),
    ("stages", {"ranks": 8, "pipeline_parallel": 2, "senders": "stages"}, 1,
     {0: "rank 0 (a sender)", 2: "rank 2", 4: "rank 4 (a sender)"}),
]
# fmt: on


@pytest.mark.parametrize(
    ("trainer", "num_engines", "whom"), [c[1:] for c in SENDERS], ids=[c[0] for c in SENDERS]
)
def test_senders(trainer: dict[str, Any], num_engines: int, whom: dict[int, str]) -> None:
    """Every rank that sends is called a sender, and they are those of the trainer's fakes."""
    model = Trainer.model_validate(trainer)
    senders = words.senders_of(model, num_engines)
    layout = Layout(
        tensor=model.tensor_parallel, data=model.data_parallel, pipeline=model.pipeline_parallel
    )
    roles = Roles(model.senders, layout, num_engines=num_engines)
    assert {roles.sender_of(rank) for rank in range(model.ranks)} == set(senders)
    for rank, told in whom.items():
        fault = {"kind": "kill", "at": "rank.gather", "rank": rank}
        assert words.who(FAULT_SPECS["kill"].model_validate(fault), senders) == told


# fmt: off
STAGED = [
    # id, requests (engine, request), in words
    ("none", [], []),
    ("one", [("all", "pause")], ["every engine is sent pause before the trainer connects"]),
    ("in-order", [(1, "pause"), (1, "start"), (1, "start"), (1, "finish")],
     ["engine 1 is sent pause, 2 x start and finish before the trainer connects"]),
    ("two", [(0, "pause"), ("all", "pause")],
     ["engine 0 is sent pause before the trainer connects",
      "every engine is sent pause before the trainer connects"]),
]
# fmt: on


@pytest.mark.parametrize(
    ("requests", "told"), [case[1:] for case in STAGED], ids=[case[0] for case in STAGED]
)
def test_staged(requests: list[tuple[Any, Any]], told: list[str]) -> None:
    """Requests before the connect are told in their order, equal ones counted."""
    staged = [StagedRequest(engine=engine, request=request) for engine, request in requests]
    assert words.staged(staged) == told


# fmt: off
EXPECTATIONS = [
    # id, expectation, of the ranks, of three engines
    ("resumed", {"outcome": "resumed", "attempts": 2, "version": "1", "generation": "running"},
     "every rank returns, and generation goes on (resumed), after 2 attempts",
     ['every engine: shows version "1", generation is running']),
    ("raised", {"outcome": "raised", "error": "no free device", "names_engine": 1,
                "version": ["1", "default", "1"], "bytes": "committed"},
     'every rank raises (raised), saying "no free device", naming engine 1',
     ['engine 0 and engine 2: shows version "1", its weights are reported as committed',
      'engine 1: shows version "default", its weights are reported as committed']),
    ("stalled", {"outcome": "deadlock", "stall": "deadlock"},
     "every rank waits for ever: the monitor must call it a deadlock (deadlock); the monitor calls "
     "the stall deadlock",
     []),
]
# fmt: on


@pytest.mark.parametrize(
    ("expectation", "ranks", "engines"),
    [case[1:] for case in EXPECTATIONS],
    ids=[case[0] for case in EXPECTATIONS],
)
def test_expectations(expectation: dict[str, Any], ranks: str, engines: list[str]) -> None:
    """What is expected of ranks and engines is said, and nothing that is not."""
    expected = Expectation.model_validate(expectation)
    assert words.of_ranks(expected) == ranks
    assert words.of_engines(expected, 3) == engines
