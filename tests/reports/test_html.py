"""``report.html``: self-contained, small, and holding what its scripts draw."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from sample_results import FAILING, HANGING, make_result
from sample_runs import CALM_EVENTS, EVENTS, event, make_run, span, unfinished, write_journal

from harness.reporting.result_file import Details
from harness.reporting.run_folder import Run
from reports import html, packing
from reports.packing import KINDS, story_as_json
from reports.stories import Stories
from reports.story import tell

PACKED = re.compile(r'<script type="text/plain" id="([\w-]+)">([A-Za-z0-9+/=]*)</script>')


def page_of(run: Run, out_dir: Path) -> tuple[str, dict[str, Any]]:
    """Return a run's page, and the data in it by id."""
    page = html.write(run, Stories(), out_dir).read_text("utf-8")
    data = {
        name: json.loads(zlib.decompress(base64.b64decode(text)))
        for name, text in PACKED.findall(page)
    }
    return page, data


def test_needs_no_network(tmp_path: Path) -> None:
    """Nothing is fetched: no address outside of comments of the libraries, and a policy says so."""
    page, _ = page_of(make_run(), tmp_path)
    assert "default-src 'none'" in page
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)[^"']+""", page.partition("<script>")[0])
    assert not re.findall(r"@import|url\((?!#)", page.partition("</style>")[0])


def test_first_screen(tmp_path: Path) -> None:
    """What failed, what engines hold and how to run it again stand in the HTML, the worst first."""
    page, _ = page_of(make_run(), tmp_path)
    overview = page.partition("Where each fault strikes")[0]
    assert overview.index("controls/flag_after_send") < overview.index("draft/finish_fails")
    assert "engine 0: &#34;default&#34; paused, weights push 1" in overview
    assert "resync-chaos run scenarios/controls/flag_after_send.yaml" in overview
    assert "3 of 7 scenarios did not pass" in overview


def test_what_was_not_run(tmp_path: Path) -> None:
    """All its names are there, folded away: what did not pass stays on the first screen."""
    names = tuple(f"late/{n}" for n in range(30))
    page, _ = page_of(make_run(not_run=names), tmp_path)
    (folded,) = re.findall(r"<details[^>]*><summary>30 not run</summary>(.*?)</details>", page)
    assert folded == ", ".join(names)


def test_every_scenario_is_in_it(tmp_path: Path) -> None:
    """The groups hold every scenario once, in the order of the index."""
    results = [make_result(f"session/{n:03}") for n in range(20)]
    _, data = page_of(make_run(results), tmp_path)
    groups = [data[f"group-{n}"] for n in range(3)]
    assert [each["name"] for group in groups for each in group] == data["index"]["names"]
    assert data["index"]["names"] == [f"session/{n:03}" for n in range(20)]


def test_a_failing_run_beside_its_control(tmp_path: Path) -> None:
    """The control's story is carried once, and the first difference is told in both."""
    journal = write_journal(tmp_path / "session/story", EVENTS)
    write_journal(tmp_path / "controls-runs/abc", CALM_EVENTS)
    results = [make_result(name, journal=journal) for name in ("session/a", "session/b")]
    details = {r.name: Details(control="controls-runs/abc") for r in results}
    _, data = page_of(make_run(results, folder=tmp_path, details=details), tmp_path)
    (first, second) = data["group-0"]
    assert data["index"]["controls"] == {"controls-runs/abc": 0}
    assert first["control"] == second["control"] == "controls-runs/abc"
    assert first["differences"][0]["sentence"].endswith("engine.update answers 500")
    (calm,) = data["controls-0"]
    assert len(calm["spans"]["l"]) == len(tell(CALM_EVENTS).spans)


def test_a_hang(tmp_path: Path) -> None:
    """The graph of who waits for whom and every stack are carried."""
    table = [
        {"who": "rank 0", "at": "is in all_reduce", "waits_for": "rank 1, which is in a gather"},
        {"who": "rank 1", "at": "is in all_gather", "waits_for": "rank 0, which is in all_reduce"},
    ]
    halt = event(2.0, "harness", "halt", kind="deadlock", sentence="a deadlock", table=table)
    journal = write_journal(tmp_path / "a", [*span(1.0, None, "rank:0", "barrier"), halt])
    result = make_result(
        "controls/a", verdict=HANGING.verdict, evidence=HANGING.evidence, journal=journal
    )
    _, data = page_of(make_run([result]), tmp_path)
    (found,) = data["group-0"]
    assert found["graphs"][0]["edges"] == [[0, 1], [1, 0]]
    assert found["evidence"] == HANGING.evidence


def test_what_is_known_of_a_scenario_that_was_cut_off(tmp_path: Path) -> None:
    """A broken journal is told up to its break, and the break is said."""
    journal = write_journal(tmp_path / "late", span(1.0, None, "rank:1", "gather", tensor="embed"))
    journal.write_bytes(journal.read_bytes() + b'{"t": 1.5, "who"')
    page, data = page_of(make_run([], unfinished=(unfinished(journal),)), tmp_path)
    (found,) = data["group-0"]
    assert found["verdict"] == "unfinished"
    assert found["open"] == ["rank:1: gather embed"]
    assert "it ends in the middle of a line" in found["breaks"][0]
    assert "1 of 1 scenarios did not pass" in page


def test_engine_cards(tmp_path: Path) -> None:
    """A card has the checksum beside the trainer's, each worker's session, and what was served."""
    seen = {"index": 0, "fingerprint": "f1", "sessions": [False, True], "stuck": False}
    push = {"number": 1, "version": "1", "expected_weights": "f1", "outcome": "resumed",
            "after": [seen], "ranks": {}}  # fmt: skip
    journal = write_journal(tmp_path / "a")
    result = make_result("session/a", engines=FAILING.engines[:1], journal=journal)
    details = {"session/a": Details(pushes=(push,), weights={"f0": "start", "f1": "push 1"})}
    _, data = page_of(make_run([result], details=details), tmp_path)
    (card,) = data["group-0"][0]["engines"]
    assert (card["checksum"], card["trainer"]["checksum"]) == ("f1", "f1")
    assert card["sessions"] == ["closed", "open"]
    assert card["served"] == [["1", "default", "start", 1], ["1", "1", "push 1", 2]]


def test_a_story_unpacked_is_the_story() -> None:
    """Columns and tables give back every span, to a tenth of a millisecond."""
    story = tell(EVENTS)
    packed = story_as_json(story)
    columns, begin, found = packed["spans"], 0, []
    for row in zip(*(columns[key] for key in "lknbdst"), strict=True):
        begin += row[3]
        found.append((packed["lanes"][row[0]], KINDS[row[1]], packed["names"][row[2]], begin))
    assert found == [
        (span.lane, span.kind, span.name, round((span.begin - story.begin) * 1e4))
        for span in story.spans
    ]


def test_long_stories_are_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin and end stay, and of the middle what failed; what is left out is counted."""
    monkeypatch.setattr(packing, "MAX_SPANS", 9)
    story = tell(
        each
        for n in range(100)
        for each in (
            event(n, "rank:0", "step", name=f"s{n}", phase="begin"),
            event(n + 0.5, "rank:0", "step", name=f"s{n}", phase="end", ok=n not in (50, 60)),
        )
    )
    packed = story_as_json(story)
    assert packed["names"] == ["s0", "s1", "s2", "s50", "s60", "s97", "s98", "s99"]
    assert packed["leftOut"] == 92


def test_licences_are_carried() -> None:
    """Every vendored file has its licence beside it."""
    vendor = Path(html.HERE) / "vendor"
    for name in html.VENDORED:
        licence = vendor / "licences" / f"{name.removesuffix('.min.js')}.txt"
        assert "Copyright" in licence.read_text("utf-8"), name
    assert {path.name for path in vendor.glob("*.js")} == set(html.VENDORED)
