"""Keeps the tests' own scenario files from being collected, and counts tests that passed late."""

from __future__ import annotations

import pytest

collect_ignore_glob = ["*.yaml"]  # of any depth: a star takes slashes too

MAX_RERUNS = 3  # in one session: on a shared machine one test is unlucky, many are broken


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a session in which many tests passed only when they ran again (``--reruns``)."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    reruns = reporter.stats.get("rerun", ()) if reporter is not None else ()
    if len(reruns) > MAX_RERUNS and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"{len(reruns)} tests ran again, more than {MAX_RERUNS}: failed")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
