"""How tensors share a buffer: vLLM's rules, the same on both ends.

NCCL appends tensors until the total is *greater* than the buffer, so a chunk may exceed it by one
tensor. IPC flushes first, so a chunk never exceeds the buffer. Neither aligns anything.

Source: ``distributed/weight_transfer/packed_tensor.py`` of vLLM 0.32.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch


@dataclass
class PackedChunk:
    """The tensors of one chunk, in order; sizes in bytes."""

    names: list[str] = field(default_factory=list)
    dtypes: list[torch.dtype] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    tensor_sizes: list[int] = field(default_factory=list)
    num_bytes: int = 0

    def append(self, name: str, dtype: torch.dtype, shape: Sequence[int], size: int) -> None:
        """Add one tensor of ``size`` bytes."""
        self.names.append(name)
        self.dtypes.append(dtype)
        self.shapes.append(list(shape))
        self.tensor_sizes.append(size)
        self.num_bytes += size


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name that travels in an update: ``float32``."""
    return str(dtype).split(".")[-1]


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bytes, row major: ``uint8[nbytes]``."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def nccl_chunks(
    tensors: Iterator[tuple[str, torch.Tensor]], *, buffer_bytes: int
) -> Iterator[tuple[PackedChunk, torch.Tensor]]:
    """Yield each chunk to broadcast and its bytes; pulls tensors only as it needs them."""
    chunk, parts = PackedChunk(), []
    for name, tensor in tensors:
        part = as_bytes(tensor)
        if part.numel() > buffer_bytes:
            warnings.warn(
                f"Tensor '{name}' has size {part.numel()} bytes, which "
                f"exceeds buffer_size_bytes={buffer_bytes}.",
                stacklevel=2,
            )
        parts.append(part)
        chunk.append(name, tensor.dtype, tensor.shape, part.numel())
        if chunk.num_bytes > buffer_bytes:
            yield chunk, torch.cat(parts)
            chunk, parts = PackedChunk(), []
    if parts:
        yield chunk, torch.cat(parts)


def nccl_chunk_layouts(
    metadata: Iterable[tuple[str, torch.dtype, Sequence[int]]], *, buffer_bytes: int
) -> Iterator[PackedChunk]:
    """Yield the chunks that a receiver must expect, from metadata alone."""
    chunk = PackedChunk()
    for name, dtype, shape in metadata:
        chunk.append(name, dtype, shape, math.prod(shape) * dtype.itemsize)
        if chunk.num_bytes > buffer_bytes:
            yield chunk
            chunk = PackedChunk()
    if chunk.names:
        yield chunk


def ipc_chunks(
    tensors: Iterator[tuple[str, torch.Tensor]], buffer: torch.Tensor
) -> Iterator[PackedChunk]:
    """Fill the buffer chunk by chunk and yield what is in it.

    The first tensor of the next chunk is pulled before a chunk is yielded. The caller resumes
    only when every consumer has read the buffer.

    Raises:
        ValueError: one tensor is larger than the buffer.
    """
    capacity = buffer.numel()
    chunk = PackedChunk()
    for name, tensor in tensors:
        part = as_bytes(tensor)
        size = part.numel()
        if size > capacity:
            raise ValueError(
                f"Tensor '{name}' has size {size} bytes, "
                f"which exceeds buffer_size_bytes={capacity}. "
                f"Increase buffer_size_bytes to at least {size}."
            )
        if chunk.num_bytes and chunk.num_bytes + size > capacity:
            yield chunk
            chunk = PackedChunk()
        buffer[chunk.num_bytes : chunk.num_bytes + size].copy_(part)
        chunk.append(name, tensor.dtype, tensor.shape, size)
    if chunk.num_bytes:
        yield chunk


def unpack(packed: torch.Tensor, chunk: PackedChunk) -> list[tuple[str, torch.Tensor]]:
    """Return the chunk's tensors as views of ``packed``, which may be larger."""
    parts = packed[: chunk.num_bytes].split_with_sizes(chunk.tensor_sizes)
    return [
        (name, part.contiguous().view(dtype).view(shape))
        for name, dtype, shape, part in zip(
            chunk.names, chunk.dtypes, chunk.shapes, parts, strict=True
        )
    ]
