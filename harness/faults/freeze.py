"""A process stops, as under a debugger or a hypervisor: it lives, and does nothing any more."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import ClassVar

from harness.contracts import Exchange, Json
from harness.faults.kill import Process, signal_here
from harness.faults.kind import FaultKind


class Freeze(FaultKind):
    """SIGSTOP the process that reached the point; it is never continued.

    Its connections stay open and are not read, and none of its threads runs, the one that would
    tell of it neither.

    Attributes:
        process: at a request, which process of a real engine; all of them by default. A fake one
            stops whichever is named.
    """

    kind: ClassVar[str] = "freeze"
    strikes: ClassVar[tuple[str, ...]] = ("engine.*", "worker.*", "rank.*")
    never_returns: ClassVar[bool] = True

    process: Process | None = None

    def label(self) -> str:
        return "freezes" if self.process is None else f"its {self.process} freezes"

    async def at_request(self, exchange: Exchange) -> None:
        exchange.signal(signal.SIGSTOP, self.process)
        await exchange.forward()  # where it was another process that stopped

    def in_thread(self, where: Mapping[str, Json]) -> None:
        signal_here(self.kind, self.process, where, signal.SIGSTOP)
