"""The matrix: which cells there are, what they are called and what they hold."""

from __future__ import annotations

from typing import Any

import pytest

from harness.matrix import expand

FAULTS = [{"engine": 0}]
LONG = "a message that is much longer than a name of a cell may be"
LONG_ID = "a_message_that_is_much_longer_t_71e9c1d7"

# fmt: off
IDS = [
    # id             matrix                                       ids of the cells
    ("one-axis",     {"transport": ["ipc", "nccl"]},              "[ipc] [nccl]"),
    ("last-fastest", {"seed": [1, 2], "pushes": [3, 4]},          "[1-3] [1-4] [2-3] [2-4]"),
    ("in-order",     {"pushes": [3, 4], "seed": [1]},             "[3-1] [4-1]"),
    ("packed",       {"packed": [True, False]},                   "[packed] [unpacked]"),
    ("a-flag",       {"draft": [True, False]},                    "[draft] [no_draft]"),
    ("a-mapping",    {"faults.0": [{"kind": "kill", "nth": 2}]},  "[kill+2]"),
    ("flag-inside",  {"faults.0": [{"required": False}]},         "[no_required]"),
    ("a-list",       {"faults.0.nth": [1, [2, 3], "always"]},     "[1] [2+3] [always]"),
    ("nested",       {"restarts": [[{"what": "trainer"}], []]},   "[trainer] [empty]"),
    ("nothing",      {"source": [None, ""]},                      "[none] [empty]"),
    ("odd-letters",  {"faults.0.tensor": ["*.0.q proj/*"]},       "[0.q_proj]"),
    ("long",         {"proves": [LONG]},                          f"[{LONG_ID}]"),
    ("exclude",      {"seed": [1, 2], "pushes": [3, 4],
                      "exclude": [{"seed": 1, "pushes": 3}, {"pushes": 4}]}, "[2-3]"),
    ("true-is-not-1", {"seed": [True, 1], "exclude": [{"seed": True}]},      "[1]"),
]
# fmt: on


@pytest.mark.parametrize(("matrix", "ids"), [c[1:] for c in IDS], ids=[c[0] for c in IDS])
def test_ids(matrix: dict[str, Any], ids: str) -> None:
    """Cells are named after their values, and come in the matrix's order."""
    cells, problems = expand({"faults": FAULTS, "matrix": matrix})
    assert problems == []
    assert " ".join(cell.id for cell in cells) == ids


def test_no_matrix() -> None:
    """A file without a matrix is one cell without a name."""
    (cell,), problems = expand({"seed": 1})
    assert (cell.id, cell.data, problems) == ("", {"seed": 1}, [])
    assert cell.origin(("seed",)) == ("seed",)


def test_values_are_placed() -> None:
    """Values replace what stands at their place, mappings are merged, absent mappings are made."""
    matrix = {
        "faults.0": [{"kind": "kill", "engine": 1}],
        "engines.count": [2],
        "transport": ["ipc"],
    }
    data = {"faults": [{"engine": 0, "push": 2}], "transport": "nccl", "matrix": matrix}
    (cell,), _ = expand(data)
    assert cell.data == {
        "faults": [{"engine": 1, "push": 2, "kind": "kill"}],
        "engines": {"count": 2},
        "transport": "ipc",
    }
    assert data["faults"] == [{"engine": 0, "push": 2}]


def test_cells_share_nothing() -> None:
    """Changing one cell's values changes no other cell's."""
    (first, second), _ = expand({"faults": [{}], "matrix": {"seed": [1, 2]}})
    first.data["faults"][0]["kind"] = "kill"
    assert second.data["faults"] == [{}]


# fmt: off
ORIGINS = [
    # id          place in the cell         where it was written
    ("of-a-value",   ("transport",),        ("matrix", "transport", 0)),
    ("of-a-key",     ("faults", 0, "kind"), ("matrix", "faults.0", 0, "kind")),
    ("of-the-file",  ("faults", 0, "push"), ("faults", 0, "push")),
    ("of-the-made",  ("engines", "count"),  ("matrix", "engines.count", 0)),
    ("of-its-mapping", ("engines",),        ("matrix", "engines.count")),
    ("of-nothing",   ("seed",),             ("seed",)),
]
# fmt: on


@pytest.mark.parametrize(
    ("place", "origin"), [case[1:] for case in ORIGINS], ids=[case[0] for case in ORIGINS]
)
def test_origin(place: tuple[str | int, ...], origin: tuple[str | int, ...]) -> None:
    """Errors of a cell are shown where the value was written, in the matrix or outside."""
    matrix = {"faults.0": [{"kind": "kill"}], "transport": ["ipc"], "engines.count": [1]}
    (cell,), _ = expand({"faults": [{"push": 1}], "matrix": matrix})
    assert cell.origin(place) == origin


def test_origin_of_a_key() -> None:
    """A key that the matrix puts there stands in the matrix itself, or in the mapping it puts."""
    matrix = {"faults.0": [{"kind": "kill"}], "engines.cont": [1, 2]}
    cell = expand({"faults": [{"push": 1}], "matrix": matrix})[0][1]
    assert cell.origin(("engines", "cont"), at_key=True) == ("matrix", "engines.cont")
    assert cell.origin(("faults", 0, "kind"), at_key=True) == ("matrix", "faults.0", 0, "kind")
    assert cell.origin(("faults", 0, "push"), at_key=True) == ("faults", 0, "push")


def test_too_many_cells() -> None:
    """A matrix has a limit, so that a slip does not start a run of hours."""
    axes = {f"target_options.{letter}": list(range(11)) for letter in "abc"}
    cells, problems = expand({"matrix": axes})
    assert cells == []
    assert [problem.message for problem in problems] == [
        "expected at most 1000 cells, found 1331. Use fewer values."
    ]
