"""A test that failed once and passed when it ran again is shown; many of them fail the session."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

UNLUCKY = """
import pytest

SEEN = set()

@pytest.mark.parametrize("number", range({count}))
def test_unlucky(number):
    first = number not in SEEN
    SEEN.add(number)
    assert not first
"""


@pytest.mark.parametrize(("count", "code", "said"), [(3, 0, "3 rerun"), (4, 1, "more than 3")])
def test_reruns(pytester: pytest.Pytester, count: int, code: int, said: str) -> None:
    """Three may; the fourth is no bad luck any more."""
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(UNLUCKY.format(count=count))
    found = pytester.runpytest_subprocess("--reruns", "1", "-rR", "-p", "no:cacheprovider")
    assert found.ret == code
    found.stdout.fnmatch_lines([f"*{said}*"])
    found.stdout.fnmatch_lines(["RERUN test_reruns.py::test_unlucky?0?*"])


def test_a_failure_is_none(pytester: pytest.Pytester) -> None:
    """What fails both times has failed."""
    pytester.makeconftest((Path(__file__).parent / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile("def test_wrong():\n    assert False\n")
    found = pytester.runpytest_subprocess("--reruns", "1", "-p", "no:cacheprovider")
    assert found.ret == 1
