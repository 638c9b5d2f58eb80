"""Which ranks talk to which engines, for each way of sending."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.megatron.layout import Layout
from fakes.megatron.roles import Roles
from harness.contracts import EngineAddress

SLOTS, STAGES = Layout(tensor=2, expert=2, data=2), Layout(tensor=2, pipeline=2)

# fmt: off
ROLES = [
    # senders   layout  owners    stages   sender of each rank  slot of rank 3
    ("one",     SLOTS,  (0, 0),   (),      [0, 0, 0, 0],        []),
    ("slots",   SLOTS,  (0, 2),   (),      [0, 0, 2, 2],        [2, 3]),
    ("stages",  STAGES, (0, 0),   (0, 2),  [0, 0, 2, 2],        []),
]
# fmt: on


@pytest.mark.parametrize(
    ("senders", "layout", "owners", "stages", "sender_of", "slot"), ROLES, ids=[r[0] for r in ROLES]
)
def test_roles(
    senders: str, layout: Layout, owners: Any, stages: Any, sender_of: Any, slot: Any
) -> None:
    """Owners, stages' senders, every rank's sender and slot are these."""
    roles = Roles(senders, layout, num_engines=2)
    assert (roles.owners, roles.stages) == (owners, stages)
    assert [roles.sender_of(rank) for rank in range(4)] == sender_of
    assert list(roles.slot(3)) == slot


def test_gpus() -> None:
    """A slot's GPUs are those of its engine's workers."""
    roles = Roles("slots", SLOTS, num_engines=2)
    engines = [EngineAddress(index=i, url=f"http://engine-{i}", workers=3) for i in (0, 1)]
    assert list(roles.gpus_of(roles.slot(1), engines)) == [0, 1, 2]
    assert list(roles.gpus_of(roles.slot(2), engines)) == [3, 4, 5]
