"""Ranks, coordinates and groups in Megatron's order."""

from __future__ import annotations

import pytest

from fakes.megatron.layout import GROUP_AXES, Layout

# fmt: off
GROUPS = [
    # id            layout                                 kind   groups
    ("tp",          Layout(tensor=2, data=2),              "tp",  [[0, 1], [2, 3]]),
    ("dp",          Layout(tensor=2, data=2),              "dp",  [[0, 2], [1, 3]]),
    ("pp-alone",    Layout(tensor=2, data=2),              "pp",  [[0], [1], [2], [3]]),
    ("pp",          Layout(tensor=2, pipeline=2),          "pp",  [[0, 2], [1, 3]]),
    ("cp",          Layout(tensor=2, context=2),           "cp",  [[0, 2], [1, 3]]),
    ("ep",          Layout(tensor=2, expert=2, data=2),    "ep",  [[0, 2], [1, 3]]),
    ("ep-in-dp",    Layout(expert=2, data=4),              "ep",  [[0, 1], [2, 3]]),
    ("edp",         Layout(expert=2, data=4),              "edp", [[0, 2], [1, 3]]),
    ("dp-of-both",  Layout(expert=2, data=4),              "dp",  [[0, 1, 2, 3]]),
    ("pp-is-last",  Layout(data=2, pipeline=2),            "pp",  [[0, 2], [1, 3]]),
    ("one-rank",    Layout(),                              "tp",  [[0]]),
]
BAD = [
    # id       sizes                      text
    ("zero",   {"tensor": 0},             "tensor: expected at least 1, found 0"),
    ("expert", {"expert": 2, "data": 3},  r"expert: expected a divisor of data \(3\), found 2"),
]
STAGES = [
    # id            pipeline  num_layers  stages
    ("one",         1,        2,          [0, 0]),
    ("two",         2,        2,          [0, 1]),
    ("uneven",      2,        3,          [0, 0, 1]),
    ("few-layers",  2,        1,          [0]),
]
# fmt: on


@pytest.mark.parametrize(
    ("layout", "kind", "groups"), [c[1:] for c in GROUPS], ids=[c[0] for c in GROUPS]
)
def test_groups(layout: Layout, kind: str, groups: list[list[int]]) -> None:
    """Groups of a kind hold the ranks that differ in that kind's axes alone."""
    assert layout.groups(kind) == groups


@pytest.mark.parametrize("kind", GROUP_AXES)
def test_groups_partition_the_world(kind: str) -> None:
    """Every rank is in exactly one group of each kind, and group_of finds it."""
    layout = Layout(tensor=2, context=2, expert=2, data=4, pipeline=2)
    groups = layout.groups(kind)
    assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
    assert all(layout.group_of(kind, rank) == group for group in groups for rank in group)


def test_coordinates() -> None:
    """Tensor parallel ranks are neighbours, pipeline stages are furthest apart."""
    layout = Layout(tensor=2, data=2, pipeline=2)
    assert layout.coordinates(6) == {"tp": 0, "cp": 0, "ep": 0, "edp": 1, "pp": 1}
    assert layout.coordinates(1) == {"tp": 1, "cp": 0, "ep": 0, "edp": 0, "pp": 0}


@pytest.mark.parametrize(("sizes", "text"), [c[1:] for c in BAD], ids=[c[0] for c in BAD])
def test_impossible_layout(sizes: dict[str, int], text: str) -> None:
    """A layout that cannot be says which size is wrong."""
    with pytest.raises(ValueError, match=text):
        Layout(**sizes)


def test_unknown_kind_and_rank() -> None:
    """Unknown names list the known ones, and ranks their range."""
    with pytest.raises(
        ValueError, match="kind: expected one of tp, cp, ep, dp, edp, pp, found 'x'"
    ):
        Layout().groups("x")
    with pytest.raises(ValueError, match="rank: expected 0 to 0, found 1"):
        Layout().coordinates(1)


@pytest.mark.parametrize(
    ("pipeline", "num_layers", "stages"), [c[1:] for c in STAGES], ids=[c[0] for c in STAGES]
)
def test_stage_of_layer(pipeline: int, num_layers: int, stages: list[int]) -> None:
    """Layers lie on contiguous stages, in order."""
    layout = Layout(pipeline=pipeline)
    assert [layout.stage_of_layer(i, num_layers) for i in range(num_layers)] == stages
