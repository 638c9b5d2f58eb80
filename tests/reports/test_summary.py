"""``summary.md``: the worst first, within what Buildkite takes, and foreign text left text."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_results import FAILING, HANGING, INVALID, make_result
from sample_runs import HOSTILE, make_run, unfinished

from harness.contracts import Verdict
from reports import summary
from reports.stories import Stories
from reports.summary import code, plain

MEBIBYTE = 1 << 20


def test_worst_first(tmp_path: Path) -> None:
    """Hangs, then what was running when the run died, then failures, then what proved nothing."""
    run = make_run([INVALID, FAILING, HANGING], unfinished=(unfinished(tmp_path / "none"),))
    text = summary.write(run, Stories(), tmp_path).read_text("utf-8")
    places = [text.index(f"**{word}**") for word in ("hang", "unfinished", "fail", "invalid")]
    assert places == sorted(places)


def test_shortened_with_care(tmp_path: Path) -> None:
    """Thousands of failures fit: the first in full, then a line each, then their number."""
    results = [
        make_result(f"session/{n:05}", verdict=Verdict.FAIL, sentence="é" * 3000, checks=())
        for n in range(3000)
    ]
    path = summary.write(make_run(results), Stories(), tmp_path)
    text = path.read_text("utf-8")
    assert MEBIBYTE * 0.9 < path.stat().st_size < MEBIBYTE
    assert "session/00000" in text
    named = text.count("**fail**")
    assert f"and {3000 - named} more, in `report.html` and `junit.xml`." in text


def test_all_passed(tmp_path: Path) -> None:
    """A green run says so, with its slowest scenarios."""
    run = make_run([make_result("session/a")])
    text = summary.write(run, Stories(), tmp_path).read_text("utf-8")
    assert text.startswith("### resync-chaos: 1 scenarios passed\n")
    assert text.endswith("\nSlowest: session/a 0.40 s\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("**a** <b>", "\\*\\*a\\*\\* &lt;b&gt;"),
        ("- a\n1. b", "\\- a 1. b"),
        ("1. a", "1\\. a"),
        ("a\x1b[0m", "a\\\\x1b\\[0m"),
    ],
)
def test_plain(text: str, shown: str) -> None:
    """Nothing that a stranger writes is Markdown, HTML or a second line."""
    assert plain(text) == shown


def test_code_cannot_be_ended() -> None:
    """A fence is longer than any that the text holds."""
    shown = code(HOSTILE)
    assert shown.startswith("````\n")
    assert shown.endswith("\n````\n")
