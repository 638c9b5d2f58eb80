"""The resumable source: what counts as a pass, and how one is completed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from resync import ResumableWeightSource, SourceFailed

NAMES = ("a", "b", "c")
TENSOR_BYTES = 8


class Inner:
    """A source that counts what is taken from it, and may fail at one tensor."""

    def __init__(self, *, fail_at: str = "") -> None:
        self.draft = False
        self.taken: list[str] = []
        self.closed_early = 0
        self.fail_at = fail_at

    def metadata(self) -> list[str]:
        if self.fail_at == "metadata":
            raise OSError("broken")
        return list(NAMES)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        try:
            for name in NAMES:
                if name == self.fail_at:
                    raise OSError("broken")
                self.taken.append(name)
                yield name, torch.zeros(TENSOR_BYTES // 4)
        except GeneratorExit:
            self.closed_early += 1
            raise


def take(source: ResumableWeightSource, count: int) -> None:
    """Iterate as a producer that dies by an exception after ``count`` tensors."""

    def produce() -> None:
        for number, _ in enumerate(source, start=1):
            if number == count:
                raise KeyError("the producer's own failure")

    with pytest.raises(KeyError):
        produce()


# fmt: off
CASES = [
    # tensors taken before   taken by finish_pass   bytes
    (None,                   ["a", "b", "c"],       0),  # no pass was started
    (1,                      ["b", "c"],            8),
    (2,                      ["c"],                 16),
    (3,                      [],                    24),  # taken, but the end not yet seen
]
# fmt: on


@pytest.mark.parametrize(("before", "drained", "num_bytes"), CASES)
def test_finish_pass(before: int | None, drained: list[str], num_bytes: int) -> None:
    """It runs what is left, a whole pass if none was started, and counts none of it."""
    inner = Inner()
    steps: list[tuple[str, Any]] = []
    source = ResumableWeightSource(
        inner, observe=lambda step, /, **details: steps.append((step, details.get("started")))
    )
    source.begin_pass()
    source.metadata()  # no pass
    if before is not None:
        take(source, before)
    assert inner.closed_early == 0  # the live iterator outlives the producer
    already = len(inner.taken)
    source.finish_pass()
    assert inner.taken[already:] == drained
    assert source.bytes_yielded == num_bytes
    assert steps == [("finish_pass", before is not None), ("finish_pass", None)]
    source.finish_pass()
    assert inner.taken == list(NAMES)
    assert inner.closed_early == 0


def test_complete_pass() -> None:
    """After a complete pass there is nothing to finish, and bytes are those of the pass."""
    inner = Inner()
    source = ResumableWeightSource(inner)
    for _ in range(2):
        source.begin_pass()
        assert [name for name, _ in source] == list(NAMES)
        source.finish_pass()
        assert source.bytes_yielded == 3 * TENSOR_BYTES
    assert inner.taken == [*NAMES, *NAMES]


@pytest.mark.parametrize("taken", [1, 3])
def test_second_iteration(taken: int) -> None:
    """Iterating twice in one send would be a collective that the other ranks do not enter."""
    source = ResumableWeightSource(Inner())
    iterator = iter(source)
    for _ in range(taken):
        next(iterator)
    with pytest.raises(RuntimeError) as second:
        iter(source)
    assert str(second.value) == (
        "expected one iteration of the weight source per send, found a second one: every iteration "
        "is a collective of all ranks. Call begin_pass() before another send."
    )


# fmt: off
FAILURES = [
    # fails at    what is done                       text
    ("metadata", lambda s: s.metadata(),             "metadata() of the weight source: "),
    ("a",        list,                               "the weight source, in a pass of all ranks: "),
    ("c",        list,                               "the weight source, in a pass of all ranks: "),
    ("b",        lambda s: s.finish_pass(),          "the weight source, in a pass of all ranks: "),
]
# fmt: on


@pytest.mark.parametrize(("fail_at", "use", "text"), FAILURES)
def test_source_fails(fail_at: str, use: Any, text: str) -> None:
    """Whatever the source raises is `SourceFailed`, with the original as its cause."""
    source = ResumableWeightSource(Inner(fail_at=fail_at))
    with pytest.raises(SourceFailed) as failed:
        use(source)
    assert str(failed.value) == f"{text}OSError('broken')"
    assert isinstance(failed.value.__cause__, OSError)


def test_draft_flag() -> None:
    """The flag is the wrapped source's own; a source without one stays without."""
    inner = Inner()
    source = ResumableWeightSource(inner)
    source.draft = True
    assert (inner.draft, source.draft) == (True, True)
    del inner.draft
    source.draft = True
    assert (hasattr(inner, "draft"), source.draft) == (False, False)
