"""A process dies without a word."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import ClassVar

from harness.contracts import Exchange, Json
from harness.faults.kind import FaultKind


class Kill(FaultKind):
    """SIGKILL the one process that reached the point: an engine with its workers, or a rank."""

    kind: ClassVar[str] = "kill"
    strikes: ClassVar[tuple[str, ...]] = ("engine.*", "worker.*", "rank.*")

    def label(self) -> str:
        return "is killed"

    async def at_request(self, exchange: Exchange) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def in_thread(self, where: Mapping[str, Json]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
