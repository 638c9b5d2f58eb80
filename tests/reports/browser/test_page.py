"""``report.html`` in a real browser: opens at once, is read by keyboard, and errs nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_results import FAILING, HANGING, RESULTS, make_result
from sample_runs import CALM_EVENTS, EVENTS, event, make_run, unfinished, write_journal
from test_files import hostile_run

from harness.contracts import Verdict
from harness.reporting.result_file import Details
from harness.reporting.run_folder import Run
from reports import html
from reports.stories import Stories

NUM_SCENARIOS = 200
SHOWN = "html[data-shown]"
GRAPH = [
    {"who": "rank 0", "at": "is in all_reduce #2", "waits_for": "rank 1, which is in the gather"},
    {"who": "rank 1", "at": "is in all_gather #2", "waits_for": "rank 0, which is in all_reduce"},
]

Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Yield what opens a file, and check in the end that no page said an error."""
    said: list[str] = []
    contexts = []

    def opened(path: Path, *, width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else 0)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda r: said.append(r.url) if r.url.startswith("http") else 0)
        page.goto(path.as_uri())
        page.wait_for_selector(SHOWN, state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []


def story_run(folder: Path) -> Run:
    """Return a run with a hang beside its control, and a scenario that was cut off."""
    halt = event(
        11.9, "harness", "halt", kind="deadlock", sentence="ranks 0 and 1 wait", table=GRAPH
    )
    journal = write_journal(folder / HANGING.name, [*EVENTS, halt])
    write_journal(folder / "controls-runs/abc", CALM_EVENTS)
    results = [
        *(make_result(**(vars(r) | {"journal": journal})) for r in RESULTS),
    ]
    details = {
        r.name: Details(control="controls-runs/abc", scenario={"transport": "ipc"}) for r in results
    }
    lost = write_journal(folder / "late/pause", EVENTS[:12])
    return make_run(results, folder=folder, details=details, unfinished=(unfinished(lost),))


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return html.write(story_run(tmp_path / "run"), Stories(), tmp_path)


def go_to(page: Any, name: str) -> None:
    page.locator("#scenarios a", has_text=name).click()
    page.wait_for_selector("#scenario:not(.hide) h1")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_scenario(report: Path, open_page: Open, width: int, scheme: str) -> None:
    """Each scenario is drawn in both themes, at both widths, and nothing is wider than the page."""
    page = open_page(report, width=width, scheme=scheme)
    for _ in range(2):
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.keyboard.press("Tab")
    go_to(page, HANGING.name)
    names = []
    for _ in range(len(RESULTS)):
        names.append(page.locator("#scenario h1").inner_text())
        assert page.locator("#scenario .timeline svg rect").count() > 3
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        shown = page.get_attribute("html", "data-shown")
        page.keyboard.press("j")
        page.wait_for_selector(f'html:not([data-shown="{shown}"])', state="attached")
    assert len(set(names)) == len(RESULTS)


def test_a_hang(report: Path, open_page: Open) -> None:
    """The graph is drawn, a process opens its stack by keyboard, and the control stands beside."""
    page = open_page(report)
    go_to(page, HANGING.name)
    assert page.locator(".graph .node.cyclic").count() == 2
    page.locator(".graph .node").first.focus()
    page.keyboard.press("Enter")
    assert 'File "flag.py", line 7 in push' in page.locator("#scenario pre").first.inner_text()
    assert page.locator("details ol li").first.inner_text().startswith("engine 0: a fault strikes")
    assert page.locator(".timeline").count() == 2
    assert "first difference" in page.locator(".timeline").first.inner_text()


def test_states(report: Path, open_page: Open) -> None:
    """Bands say of an engine what it serves, and of its worker which layers are on meta."""
    page = open_page(report)
    go_to(page, HANGING.name)
    titles = page.locator(".timeline").first.locator("rect title").all_text_contents()
    for band in (
        "serves version default: 100.0 ms to 1.45 s",
        "paused: 350.0 ms to 1.70 s",
        "session open: 450.0 ms to 1.20 s",
        "3 of 3 layers on meta: 440.0 ms to 1.09 s",
        "every layer loaded, buffers on meta: 1.09 s to 1.19 s",
    ):
        assert band in titles
    labels = page.locator(".timeline").first.locator("text.worker-label").all_text_contents()
    assert labels[-2:] == ["\u00a0\u00a0worker 1", "layers"]


def test_keyboard_walk(report: Path, open_page: Open) -> None:
    """Everything is reached without a mouse: skip link, scenarios, timeline, filter, overview."""
    page = open_page(report)
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the content"
    page.keyboard.press("/")
    page.wait_for_timeout(50)
    page.keyboard.type("stale")
    assert page.locator("#scenarios tbody tr:visible").count() == 1
    page.locator("#scenarios tbody tr:visible a").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#scenario:not(.hide) .timeline svg")
    svg = page.locator(".timeline svg").first
    svg.focus()
    before = svg.inner_html()
    page.keyboard.press("+")
    page.wait_for_timeout(100)
    assert svg.inner_html() != before
    page.keyboard.press("0")
    page.keyboard.press("]")
    assert "ms" in page.locator(".said").first.inner_text()
    page.keyboard.press("Escape")
    page.wait_for_selector("#overview:not(.hide)")


def test_theme_switch(report: Path, open_page: Open) -> None:
    """The switch turns over what the system prefers."""
    page = open_page(report, scheme="light")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.locator("#theme").click()
    assert page.evaluate(colour) != light
    page.keyboard.press("t")
    assert page.evaluate(colour) == light


def test_filters(report: Path, open_page: Open) -> None:
    """Kinds of spans go away and come back, and a verdict can be left out of the table."""
    page = open_page(report)
    page.locator('.by-verdict[value="pass"]').uncheck()
    assert page.locator('#scenarios tr[data-verdict="pass"]:visible').count() == 0
    go_to(page, HANGING.name)
    bars = page.locator(".timeline").first.locator("svg rect")
    all_of_them = bars.count()
    page.locator(".timeline-box label", has_text="requests").first.locator("input").uncheck()
    assert bars.count() < all_of_them


def test_hostile_texts(tmp_path: Path, open_page: Open) -> None:
    """No text of a run becomes an element, is run, or breaks a page."""
    page = open_page(html.write(hostile_run(tmp_path / "run"), Stories(), tmp_path))
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    for number in range(2):
        page.evaluate(f"location.hash = '#/s/{number}'")
        page.wait_for_selector(f'html[data-shown="{number}"]', state="attached")
        assert page.locator("#scenario img, #scenario script").count() == 0
        assert "</script><script>alert(1)" in page.locator("#scenario h1").inner_text()


def test_two_hundred_scenarios_open_at_once(tmp_path: Path, open_page: Open) -> None:
    """A large run opens without its scenarios, and each of them when it is asked for."""
    journal = write_journal(tmp_path / "story")
    run = make_run(
        [
            make_result(
                f"session/{n:03}",
                journal=journal,
                verdict=list(Verdict)[n % 4],
                evidence=FAILING.evidence,
            )
            for n in range(NUM_SCENARIOS)
        ],
        folder=tmp_path,
    )
    page = open_page(html.write(run, Stories(), tmp_path))
    assert page.locator("#scenarios tbody tr").count() == NUM_SCENARIOS
    # Nothing of a scenario is unpacked before it is opened.
    assert page.evaluate("unpackedGroups.size") == 1
    go_to(page, "session/150")
    assert page.evaluate("unpackedGroups.size") == 2
