"""The worker's ends of a transfer: vLLM's own receive code, with the fault points in its way.

On the CPU it runs over our data planes (``gloo``, ``shared_memory``), on a GPU over vLLM's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from harness.contracts import Json
from vllm_engine import agent

NamedTensors = Iterable[tuple[str, torch.Tensor]]
Engine: Any = object  # one of vLLM's, which have no types here, once it is mixed in


def reach(point: str, /, **where: Json) -> None:
    """Let a fault of the scenario strike here, where the harness has an agent in this process."""
    if (current := agent.current()) is not None:
        current.reach(point, **where)


class Visits:
    """The fault points of one update, visited as the fake engine's worker does.

    ``worker.receive`` before each tensor arrives and ``worker.load`` before it is loaded, in turn.
    Tensors that arrive together (packed, or by IPC) are still visited one by one.
    """

    def __init__(self, names: Sequence[str], session: str) -> None:
        self._names = names
        self._session = session
        self._received = self._loaded = 0

    def receive(self) -> None:
        """The next tensor is about to arrive; again before it is loaded changes nothing."""
        if self._received == self._loaded < len(self._names):
            name = self._names[self._received]
            self._received += 1
            reach("worker.receive", session=self._session, tensor=name)

    def load(self, weights: NamedTensors) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors to the model's loader, visiting both points for each."""
        for name, tensor in weights:
            self.receive()
            self._loaded += 1
            reach("worker.load", session=self._session, tensor=name)
            yield name, tensor


class _VisitedModel:
    """Stands for the model during one update: all that receive code asks of it is to load."""

    def __init__(self, model: Any, visits: Visits) -> None:
        self._model = model
        self._visits = visits

    def load_weights(self, weights: NamedTensors) -> Any:
        return self._model.load_weights(self._visits.load(weights))


class FaultPoints(Engine):  # type: ignore[misc]
    """Mixed in before one of vLLM's engines: the points ``worker.*``, and whether it was opened.

    vLLM's worker calls these methods after it has checked its session flag and before it changes
    it, which is where the fake's worker reaches the points too.
    """

    initialised = False
    model: Any  # vLLM's: what the update is loaded into
    visits: Visits | None = None  # of the update that is under way

    def init_transfer_engine(self, init_info: Any) -> None:
        """Open the channel."""
        reach("worker.init")
        self.open_channel(init_info)
        self.initialised = True

    def start_weight_update(self) -> None:
        """Send every layer to meta."""
        reach("worker.start", session=self.session)
        super().start_weight_update()

    def receive_weights(self, update_info: Any) -> None:
        """Receive what one update brings, and load it."""
        model = self.model
        self.visits = Visits(update_info.names, self.session)
        self.model = _VisitedModel(model, self.visits)
        try:
            super().receive_weights(update_info)
        finally:
            self.model, self.visits = model, None

    def finish_weight_update(self) -> None:
        """Bring every layer back from meta."""
        reach("worker.finish", session=self.session)
        super().finish_weight_update()

    def shutdown(self) -> None:
        """Close this side of the channel."""
        super().shutdown()
        self.initialised = False

    @property
    def session(self) -> str:
        """Whose weights an update brings: ``target`` or ``draft``."""
        return "target" if self.model is self._default_model else "draft"
