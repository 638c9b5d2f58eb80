"""The walk-through in ``docs/authoring.md`` is real: its commands are run, and shown the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from at_a_terminal import ROOT
from walkthrough import Block, blocks, differences, files, play

PAGE = (ROOT / "docs" / "authoring.md").read_text(encoding="utf-8")


@pytest.mark.processes
@pytest.mark.timeout(400)
def test_page(tmp_path: Path) -> None:
    """Every command of the page, one after the other in one folder, shows what stands there."""
    for name, text in files(PAGE):
        (tmp_path / name).write_text(text, encoding="utf-8")
    told = []
    played = 0
    for block in blocks(PAGE):
        shown = play(block, tmp_path)
        difference = differences(block.shown, shown)
        if difference is not None:
            told.append(f"$ {block.command}\n{difference}\n" + "\n".join(shown))
        played += 1
    assert "\n\n".join(told) == ""
    assert played > 6


# fmt: off
CASES = [
    # id, what stands there, what is shown, whether they are the same
    ("same", ["a", "b"], ["a", "b"], True),
    ("other", ["a", "b"], ["a", "c"], False),
    ("less", ["a", "b"], ["a"], False),
    ("more", ["a"], ["a", "b"], False),
    ("left-out", ["a", "...", "d"], ["a", "b", "c", "d"], True),
    ("left-out-at-the-end", ["a", "..."], ["a", "b"], True),
    ("not-after-what-was-left-out", ["...", "d", "e"], ["d", "x", "e"], False),
    ("seconds", ["x  1.25 s"], ["x 17.5 s"], True),
    ("other-numbers", ["attempts 1"], ["attempts 2"], False),
]
# fmt: on


@pytest.mark.parametrize(
    ("expected", "found", "same"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_differences(expected: list[str], found: list[str], same: bool) -> None:
    """The comparison sees what differs, and overlooks seconds and what is left out."""
    assert (differences(tuple(expected), found) is None) is same


def test_answers() -> None:
    """What is typed stands after the question."""
    block = Block("resync-chaos new a", ("What? > reject", "  told", "Where (x) > "))
    assert block.answers == ["reject", ""]
