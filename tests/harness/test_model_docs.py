"""What docstrings say of fields: every one is described, and the text is theirs."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import BaseModel

from harness.faults import FAULTS
from harness.model_docs import meanings, summary
from harness.monitors.classify import Kind
from harness.scenario import (
    FAULT_SPECS,
    Engines,
    Expectation,
    Restart,
    Scenario,
    StagedRequest,
    TimeoutLimits,
    Trainer,
)
from harness.scenario_values import Stall

MODELS = [
    *(Scenario, Trainer, Engines, TimeoutLimits, Restart, StagedRequest, Expectation),
    *FAULTS.values(),
]


@pytest.mark.parametrize("model", MODELS, ids=[model.__name__ for model in MODELS])
def test_every_field_is_described(model: type[BaseModel]) -> None:
    """Each mapping and kind says what it is, and what each of its fields means."""
    assert summary(model).endswith(".")
    assert set(meanings(model)) == set(model.model_fields)


def test_a_kind_has_its_own_fields_and_those_of_every_fault() -> None:
    """Inherited fields keep the words of the class that has them."""
    assert {"kind", "at", "nth"} <= set(meanings(FAULT_SPECS["slow"]))


class _Two(BaseModel):
    """Two things.

    More about ``them``.

    Attributes:
        one, other: either of them,
            which may be ``none``.
        last: the last one. It ends.
    """

    one: int
    other: int
    last: int
    silent: int


def test_parsing() -> None:
    """Texts are joined, shared names are told apart, and sentences begin and end as such."""
    assert summary(_Two) == "Two things.\n\nMore about `them`."
    assert meanings(_Two) == {
        "one": "Either of them, which may be `none`.",
        "other": "Either of them, which may be `none`.",
        "last": "The last one. It ends.",
    }


def test_stalls_are_the_monitors() -> None:
    """What a scenario may expect of a stall is what the monitor says."""
    assert set(get_args(get_args(Stall)[0])) == {str(kind.value) for kind in Kind}
