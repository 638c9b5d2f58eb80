"""One rank is told of fewer engines than the others: it took its list at another moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from harness.contracts import Json
from harness.faults.kind import FaultKind


class StaleEngines(FaultKind):
    """Leave the last engine out of the list that the rank is about to connect to."""

    kind: ClassVar[str] = "stale_engines"
    strikes: ClassVar[tuple[str, ...]] = ("rank.engines",)

    def label(self) -> str:
        return "knows one engine less"

    def in_thread(self, where: Mapping[str, Json]) -> None:
        where["engines"].pop()
