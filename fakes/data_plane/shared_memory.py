"""Files mapped by several processes, standing in for CUDA IPC memory.

Put the directory on ``/dev/shm``. A handle is JSON: ``{"path": str, "nbytes": int}``. Like CUDA
IPC memory, a buffer lives as long as its producer keeps it: opening a released one is an error,
and a view that was opened before reads poison (every byte 0xFF, NaN in every float type).
"""

from __future__ import annotations

import mmap
import os
import uuid
from collections.abc import Mapping
from pathlib import Path

import torch

from harness.contracts import Json

_POISON = 0xFF


class SharedBuffer:
    """One allocation of the producer, exported to whoever gets its handle.

    Attributes:
        tensor: ``uint8[nbytes]``, the memory itself.
        handle: what a consumer needs for `open_handle`; JSON.
    """

    def __init__(self, directory: Path, nbytes: int) -> None:
        path = directory / f"ipc-{uuid.uuid4().hex}"
        self._path = path
        self.tensor = _map(path, nbytes, os.O_CREAT | os.O_EXCL)
        self.handle: dict[str, Json] = {"path": str(path), "nbytes": nbytes}
        self.is_open = True

    def release(self) -> None:
        """Free the memory: later opens fail, earlier views read poison. Idempotent."""
        if self.is_open:
            self.is_open = False
            self.tensor.fill_(_POISON)
            self._path.unlink(missing_ok=True)


class SharedMemoryExporter:
    """The buffers that one producer has handed out and not released yet."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._buffers: list[SharedBuffer] = []

    def allocate(self, nbytes: int) -> SharedBuffer:
        """Return a new buffer of zeros."""
        buffer = SharedBuffer(self._directory, nbytes)
        self._buffers.append(buffer)
        return buffer

    def reduce(self, tensor: torch.Tensor) -> SharedBuffer:
        """Return a buffer with a copy of the tensor's bytes, row major.

        CUDA IPC exports the tensor's own memory; ordinary memory cannot be exported after it was
        allocated.
        """
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
        buffer = self.allocate(flat.numel())
        buffer.tensor.copy_(flat)
        return buffer

    @property
    def num_open(self) -> int:
        """Buffers that were not released."""
        return len(self._buffers)

    def release_all(self) -> None:
        """Release every buffer. Idempotent."""
        while self._buffers:
            self._buffers.pop().release()


def open_handle(handle: Mapping[str, Json]) -> torch.Tensor:
    """Map an exported buffer; the tensor aliases the producer's memory as long as it lives.

    Returns:
        ``uint8[nbytes]``.

    Raises:
        RuntimeError: the producer has released the buffer.
        ValueError: not a handle.
    """
    try:
        path, nbytes = Path(handle["path"]), int(handle["nbytes"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"IPC handle: expected path and nbytes, found {handle!r}.") from error
    try:
        return _map(path, nbytes, 0)
    except FileNotFoundError as error:
        raise RuntimeError(
            f"IPC handle {path.name}: expected live memory of its producer, found that it was "
            f"released. Keep the exported tensors until the consumers have read them."
        ) from error


def _map(path: Path, nbytes: int, flags: int) -> torch.Tensor:
    """Map a file as bytes. ``torch.from_file`` would create a missing file, silently all zeros."""
    if nbytes == 0 and not flags:
        return torch.empty(0, dtype=torch.uint8)
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        if flags:
            os.ftruncate(descriptor, nbytes)
        size = os.fstat(descriptor).st_size
        if size != nbytes:
            raise ValueError(f"IPC handle {path.name}: expected {nbytes} bytes, found {size}.")
        if nbytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(mmap.mmap(descriptor, nbytes), dtype=torch.uint8)
    finally:
        os.close(descriptor)
