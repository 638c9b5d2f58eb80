"""Makes the pictures of a report that the README shows: ``docs/report-*.png``.

Runs a few scenarios, one of them against a target that is known to deadlock, opens the report in
Chromium and takes the first screen, in light, and the hang's story, in dark.

    python docs/report_pictures.py           # needs the harness's environment, and a Chromium
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
GOOD = ("session", "version", "restart")
BAD = "target: conformance.known_bad.agree_after_send:build\n"
STORY = "yours/update_refused"
WIDTH, HEIGHT, STORY_HEIGHT = 1280, 900, 1640
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SCENARIO = """\
proves: A push whose update is refused once resends the whole model and resumes.
trainer: {ranks: 4, tensor_parallel: 2}
engines: {count: 2}
transport: nccl
pushes: 2
faults:
  - {kind: reject, at: engine.update, engine: all, push: 2, nth: 1}
expect: {outcome: resumed, generation: running}
"""


def main() -> None:
    """Run the scenarios, and write the pictures beside this file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run(folder)
        with sync_playwright() as playwright:
            path = next(filter(None, map(shutil.which, BROWSERS)), None)
            # A container's root cannot have Chromium's sandbox; the page is our own.
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            report = (folder / "out/report.html").as_uri()
            _take(browser, report, "light", "report-overview.png", story=None)
            _take(browser, report, "dark", "report-hang.png", story=STORY)
            browser.close()


def _run(folder: Path) -> None:
    """Run from a folder of its own, so that commands and paths in the report are short."""
    (folder / "scenarios/yours").mkdir(parents=True)
    (folder / f"scenarios/{STORY}.yaml").write_text(SCENARIO + BAD)
    for theme in GOOD:
        (folder / "scenarios" / theme).symlink_to(ROOT / "scenarios" / theme)
    themes = [f"scenarios/{theme}" for theme in (*GOOD, "yours")]
    command = [sys.executable, "-m", "harness.cli", "run", *themes, "--plain"]
    subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False)


def _take(browser: Any, report: str, scheme: str, name: str, *, story: str | None) -> None:
    height = HEIGHT if story is None else STORY_HEIGHT
    page = browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme=scheme)
    page.goto(report)
    page.wait_for_selector("html[data-shown]", state="attached")
    if story is not None:
        page.locator("#scenarios a", has_text=story).click()
        page.wait_for_selector("#scenario:not(.hide) .timeline svg g rect")
        page.wait_for_timeout(300)  # the control's timeline unfolds
    page.screenshot(path=ROOT / "docs" / name)
    page.close()


if __name__ == "__main__":
    main()
