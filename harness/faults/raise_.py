"""A worker or a rank raises in the middle of its work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from harness.contracts import Json
from harness.faults.kind import FaultKind


class Raise(FaultKind):
    """Raise a ``RuntimeError`` in the thread that reached the point.

    Attributes:
        message: what the error says.
    """

    kind: ClassVar[str] = "raise"
    strikes: ClassVar[tuple[str, ...]] = ("worker.*", "rank.*")

    message: str = "injected failure"

    def label(self) -> str:
        return "raises"

    def in_thread(self, where: Mapping[str, Json]) -> None:
        raise RuntimeError(self.message)
