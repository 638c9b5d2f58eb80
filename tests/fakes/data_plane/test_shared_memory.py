"""Shared memory behaves as CUDA IPC memory: shared while it lives, never silently stale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fakes.data_plane.shared_memory import SharedMemoryExporter, open_handle
from tests.fakes.data_plane.forked import run_forked


def test_other_process_reads_and_follows(tmp_path: Path) -> None:
    """A handle that went through JSON opens in another process and aliases the same bytes."""
    buffer = SharedMemoryExporter(tmp_path).reduce(torch.arange(1000.0))
    handle = json.loads(json.dumps(buffer.handle))

    def consumer() -> list[float]:
        view = open_handle(handle).view(torch.float32)
        before = float(view.sum())
        view[0] = 1.5
        return [before, float(view[0])]

    assert run_forked([consumer]) == [[499500.0, 1.5]]
    assert buffer.tensor.view(torch.float32)[0] == 1.5


def test_released_memory_cannot_be_opened(tmp_path: Path) -> None:
    """Opening after the release raises and creates no file."""
    buffer = SharedMemoryExporter(tmp_path).reduce(torch.ones(4))
    buffer.release()
    buffer.release()
    with pytest.raises(RuntimeError, match="expected live memory of its producer, found that it"):
        open_handle(buffer.handle)
    assert list(tmp_path.iterdir()) == []


def test_view_of_released_memory_is_poisoned(tmp_path: Path) -> None:
    """A view opened before the release reads NaN after it."""
    buffer = SharedMemoryExporter(tmp_path).reduce(torch.ones(4))
    view = open_handle(buffer.handle).view(torch.float32)
    assert view.tolist() == [1.0] * 4
    buffer.release()
    assert view.isnan().all()


def test_open_buffers_are_counted(tmp_path: Path) -> None:
    """num_open and the directory agree, and release_all leaves nothing."""
    exporter = SharedMemoryExporter(tmp_path)
    for size in (0, 1, 100):
        exporter.allocate(size)
    assert (exporter.num_open, len(list(tmp_path.iterdir()))) == (3, 3)
    exporter.release_all()
    exporter.release_all()
    assert (exporter.num_open, list(tmp_path.iterdir())) == (0, [])


def test_empty_tensor(tmp_path: Path) -> None:
    """A tensor without elements can be exported and opened."""
    buffer = SharedMemoryExporter(tmp_path).reduce(torch.empty(0))
    assert open_handle(buffer.handle).numel() == 0


@pytest.mark.parametrize("handle", [{}, {"path": "x"}, {"path": "x", "nbytes": None}])
def test_not_a_handle(handle: dict[str, object]) -> None:
    """Anything else than a path and a size is refused."""
    with pytest.raises(ValueError, match="IPC handle: expected path and nbytes, found "):
        open_handle(handle)


def test_wrong_size_is_refused(tmp_path: Path) -> None:
    """A handle that disagrees with its file is refused."""
    handle = SharedMemoryExporter(tmp_path).allocate(8).handle
    with pytest.raises(ValueError, match="expected 16 bytes, found 8"):
        open_handle({**handle, "nbytes": 16})
