"""A real browser for the tests of reports; without one they are skipped, or fail if asked.

``RESYNC_CHAOS_BROWSER`` is ``required`` where a missing browser is a failure (``nox -s browser``),
or the path of one.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # the sample runs

REQUIRED = "required"
NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = (
    "expected a Chromium, found none on the path and none of Playwright's. Install one "
    "(apt-get install chromium, or python -m playwright install chromium-headless-shell), or name "
    "it in RESYNC_CHAOS_BROWSER."
)


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Yield a Chromium that Playwright drives."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    asked = os.environ.get("RESYNC_CHAOS_BROWSER", "")
    named = asked if asked not in ("", REQUIRED) else None
    path = named or next(filter(None, map(shutil.which, NAMES)), None)
    with api.sync_playwright() as playwright:
        try:
            # A container's root cannot have Chromium's sandbox; the page is our own.
            found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except api.Error as error:
            if asked:
                pytest.fail(f"{MISSING}\n{error}")
            pytest.skip(MISSING)
        yield found
        found.close()
