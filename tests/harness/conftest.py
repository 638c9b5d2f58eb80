"""What the tests of the running side share: one launcher, entered once a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from real_runs import RealRuns


@pytest.fixture(scope="session")
def real_runs() -> Iterator[RealRuns]:
    """Run scenarios with the fakes; torch is imported once for all of them."""
    runs = RealRuns()
    yield runs
    runs.close()
