"""The fault points of one update: the same on a real worker as on the fake one, in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fakes.engine.layers import Model
from fakes.engine.profiles import PROFILES
from fakes.engine.worker import Worker
from fakes.model_spec import source_tensors
from vllm_engine import backends
from vllm_engine.backends import Visits

SOURCES = source_tensors()
NAMES = [source.name for source in SOURCES]
TENSORS = [(source.name, torch.zeros(source.shape)) for source in SOURCES]

Visit = tuple[str, dict[str, Any]]


class Points:
    """Notes the points that are reached; raises at one of them."""

    def __init__(self, failing: tuple[str, str] | None = None) -> None:
        self.reached: list[Visit] = []
        self._failing = failing

    def reach(self, point: str, /, **where: Any) -> None:
        self.reached.append((point, {key: where[key] for key in ("session", "tensor")}))
        if (point, where["tensor"]) == self._failing:
            raise RuntimeError("injected failure")

    def pick(self, point: str, /, **where: Any) -> None:
        raise AssertionError("only requests pick")


def _fake_worker(points: Points) -> None:
    """Update the fake engine's worker; what goes before is not noted."""
    transfer = SimpleNamespace(receive=lambda info: iter(TENSORS))
    worker = Worker(
        0,
        model=Model(seed=1, rank=0, world_size=1),
        draft=None,
        transfer=transfer,  # type: ignore[arg-type]
        backend="nccl",
        profile=PROFILES["vllm-0.32"],
        injector=points,
    )
    worker.model.start()
    worker.active = True
    worker.update_weights({"names": NAMES})


def _one_by_one(visits: Visits) -> None:
    """Receive as vLLM's unpacked NCCL code does: a broadcast, then a load, for each tensor."""
    for pair in TENSORS:
        visits.receive()
        _load(visits.load([pair]))


def _in_chunks(visits: Visits) -> None:
    """Receive as vLLM's packed NCCL code does: a broadcast, then a load of several tensors."""
    for begin in range(0, len(TENSORS), 5):
        visits.receive()
        _load(visits.load(TENSORS[begin : begin + 5]))


def _all_at_once(visits: Visits) -> None:
    """Receive as vLLM's IPC code does: everything is mapped, then loaded in one call."""
    _load(visits.load(TENSORS))


def _load(weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    for _ in weights:
        pass


@pytest.mark.parametrize("receive", [_one_by_one, _in_chunks, _all_at_once])
@pytest.mark.parametrize("point", [None, "worker.receive", "worker.load"])
def test_as_in_the_fake(
    monkeypatch: pytest.MonkeyPatch, receive: Callable[[Visits], None], point: str | None
) -> None:
    """Whatever arrives together, both pass the same points in the same order, up to a failure."""
    failing = None if point is None else (point, NAMES[6])
    found = []
    for update in (_fake_worker, lambda points: receive(Visits(NAMES, "target"))):
        points = Points(failing)
        monkeypatch.setattr(backends, "reach", points.reach)
        if failing is None:
            update(points)
        else:
            with pytest.raises(RuntimeError, match=r"^injected failure$"):
                update(points)
        found.append(points.reached)
    assert found[0] == found[1]
    assert len(found[0]) == (2 * len(NAMES) if point is None else 13 + (point == "worker.load"))


def test_no_tensors() -> None:
    """An update without tensors passes no point."""
    visits = Visits([], "target")
    visits.receive()
    assert list(visits.load([])) == []
