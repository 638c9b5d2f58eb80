"""The reference page: it is the model's, and it has everything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness import cli
from harness.fault_points import FAULT_POINTS
from harness.faults import FAULTS
from harness.reference import reference
from harness.scenario import INVARIANTS, Expectation, FaultSpec, Scenario
from harness.scenario_file import load_file

PAGE = Path(__file__).parents[2] / "docs/scenario-reference.md"
NAMES = [
    *Scenario.model_fields,
    *FaultSpec.model_fields,
    *Expectation.model_fields,
    *FAULTS,
    *(option for kind in FAULTS.values() for option in kind.model_fields),
    *FAULT_POINTS,
    *INVARIANTS,
    "resumed",
    "raised",
    "degraded",
]


def test_the_shipped_page_is_the_models() -> None:
    """``resync-chaos reference --out docs/scenario-reference.md`` writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == reference()


@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_every_name_has_a_row(name: str) -> None:
    """Each key, kind, option, point, invariant and outcome is in a table."""
    assert re.search(rf"^\|.*`{re.escape(name)}` \|", reference(), re.MULTILINE)


def test_tables_are_whole() -> None:
    """Every row has as many cells as its head, and none of a kind's or a key's texts is missing."""
    rows = [line for line in reference().splitlines() if line.startswith("|")]
    heads = [n for n, row in enumerate(rows) if set(row) <= set("|- ")]
    assert len(heads) > 20
    for begin, end in zip(heads, [*(n - 1 for n in heads[1:]), len(rows)], strict=True):
        width = len(re.findall(r"(?<!\\)\|", rows[begin]))
        for row in rows[begin + 1 : end]:
            assert len(re.findall(r"(?<!\\)\|", row)) == width, row


def test_links_lead_somewhere() -> None:
    """Each link within the page has its heading."""
    page = reference()
    headings = {
        re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-")
        for head in re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    }
    links = set(re.findall(r"\]\(#([^)]+)\)", page))
    assert links
    assert links <= headings


def test_its_example_is_a_scenario(tmp_path: Path) -> None:
    """The whole scenario at the head of the page loads."""
    blocks = re.findall(r"```yaml\n(.*?)```", reference(), re.DOTALL)
    (example,) = [block for block in blocks if block.startswith("proves:")]
    path = tmp_path / "example.yaml"
    path.write_text(example)
    loaded = load_file(path)
    assert (loaded.errors, loaded.warnings, len(loaded.scenarios)) == ((), (), 1)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`reference` prints the page, or writes it."""
    assert cli.main(["reference"]) == 0
    assert capsys.readouterr().out == reference()
    assert cli.main(["reference", "--out", str(tmp_path / "r.md")]) == 0
    assert (tmp_path / "r.md").read_text(encoding="utf-8") == reference()
