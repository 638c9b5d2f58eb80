"""A heap moves onto huge pages without anybody noticing but the kernel."""

from __future__ import annotations

import mmap
import os

import pytest

from harness.huge_pages import HUGE_PAGE_BYTES, onto_huge_pages

KERNEL = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
PATTERN = bytes(range(256)) * (4 * HUGE_PAGE_BYTES // 256)


@pytest.mark.skipif(KERNEL < (6, 1), reason="MADV_COLLAPSE came with Linux 6.1")
def test_memory_is_collapsed_and_unchanged() -> None:
    """What lies on small pages is taken, whole huge pages of it, and reads as before."""
    memory = mmap.mmap(-1, len(PATTERN), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    memory.write(PATTERN)
    memory.madvise(mmap.MADV_HUGEPAGE)
    assert onto_huge_pages() >= len(PATTERN) - HUGE_PAGE_BYTES
    assert memory[:] == PATTERN
