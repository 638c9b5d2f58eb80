"""Chunk boundaries, on both ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fakes.data_plane.packing import ipc_chunks, nccl_chunk_layouts, nccl_chunks, unpack

# fmt: off
CHUNKS = [
    # id             sizes (bytes)  buffer  NCCL chunks               IPC chunks (None: refused)
    ("facts-sheet",  [64] * 5,      128,    [[64, 64, 64], [64, 64]], [[64, 64], [64, 64], [64]]),
    ("exactly-full", [64, 64],      128,    [[64, 64]],               [[64, 64]]),
    ("one-too-many", [64, 64, 4],   128,    [[64, 64, 4]],            [[64, 64], [4]]),
    ("single",       [4],           128,    [[4]],                    [[4]]),
    ("empty",        [],            128,    [],                       []),
    ("oversize",     [4, 256, 4],   128,    [[4, 256], [4]],          None),
]
# fmt: on
IDS = [case[0] for case in CHUNKS]


def tensors(sizes: list[int]) -> Iterator[tuple[str, torch.Tensor]]:
    for index, size in enumerate(sizes):
        yield f"w{index}", torch.full((size // 4,), float(index))


@pytest.mark.filterwarnings("ignore:Tensor 'w1' has size")
@pytest.mark.parametrize(("sizes", "buffer", "expected"), [c[1:4] for c in CHUNKS], ids=IDS)
def test_nccl_chunks(sizes: list[int], buffer: int, expected: list[list[int]]) -> None:
    """A chunk ends once it is larger than the buffer, and both ends cut alike."""
    sent = list(nccl_chunks(tensors(sizes), buffer_bytes=buffer))
    metadata = [(name, tensor.dtype, tensor.shape) for name, tensor in tensors(sizes)]
    layouts = list(nccl_chunk_layouts(metadata, buffer_bytes=buffer))
    assert [chunk.tensor_sizes for chunk, _ in sent] == expected
    assert [chunk for chunk, _ in sent] == layouts
    unpacked = [pair for chunk, data in sent for pair in unpack(data, chunk)]
    assert [name for name, _ in unpacked] == [name for name, _ in tensors(sizes)]
    for (_, found), (_, original) in zip(unpacked, tensors(sizes), strict=True):
        assert torch.equal(found, original)


@pytest.mark.parametrize(
    ("sizes", "buffer", "expected"), [(*c[1:3], c[4]) for c in CHUNKS], ids=IDS
)
def test_ipc_chunks(sizes: list[int], buffer: int, expected: list[list[int]] | None) -> None:
    """A chunk never exceeds the buffer; a tensor that does is refused by name."""
    memory = torch.zeros(buffer, dtype=torch.uint8)
    if expected is None:
        with pytest.raises(ValueError, match="Tensor 'w1' has size 256 bytes, which exceeds"):
            list(ipc_chunks(tensors(sizes), memory))
        return
    found = []
    for chunk in ipc_chunks(tensors(sizes), memory):
        found.append(chunk.tensor_sizes)
        for name, tensor in unpack(memory, chunk):
            assert torch.equal(tensor, dict(tensors(sizes))[name])
    assert found == expected


def test_oversize_tensor_warns() -> None:
    """NCCL only warns of a tensor larger than the buffer, in vLLM's words."""
    text = "Tensor 'w0' has size 256 bytes, which exceeds buffer_size_bytes=128."
    with pytest.warns(UserWarning, match=text):
        list(nccl_chunks(tensors([256]), buffer_bytes=128))


def test_strided_and_mixed_types() -> None:
    """Tensors travel row major whatever their strides, and keep their types."""
    pairs = [
        ("scalar", torch.tensor(5, dtype=torch.int64)),
        ("transposed", torch.arange(6.0).view(2, 3).t()),
        ("half", torch.ones(3, dtype=torch.bfloat16)),
    ]
    [(chunk, data)] = nccl_chunks(iter(pairs), buffer_bytes=1000)
    for (_, found), (_, original) in zip(unpack(data, chunk), pairs, strict=True):
        assert found.dtype == original.dtype
        assert torch.equal(found, original)
