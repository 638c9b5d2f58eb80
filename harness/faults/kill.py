"""A process dies without a word."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from harness.contracts import Exchange, Json
from harness.errors import InjectionError
from harness.faults.kind import FaultKind
from harness.scenario_values import Words

Process = Annotated[
    Literal["server", "core", "worker"],
    Words(
        {
            "server": "the front end that takes the requests",
            "core": "the process that schedules them",
            "worker": "the first worker",
        }
    ),
]


class Kill(FaultKind):
    """SIGKILL the process that reached the point: an engine with its workers, or a rank.

    A real engine is several processes; in a worker's thread it is that worker that dies. A fake
    engine is one process.

    Attributes:
        process: at a request, which process of a real engine; all of them by default. A fake one
            dies whichever is named.
    """

    kind: ClassVar[str] = "kill"
    strikes: ClassVar[tuple[str, ...]] = ("engine.*", "worker.*", "rank.*")

    process: Process | None = None

    def label(self) -> str:
        return "is killed" if self.process is None else f"its {self.process} is killed"

    async def at_request(self, exchange: Exchange) -> None:
        exchange.signal(signal.SIGKILL, self.process)
        await exchange.forward()  # only where it was another process that died

    def in_thread(self, where: Mapping[str, Json]) -> None:
        signal_here(self.kind, self.process, where, signal.SIGKILL)


def signal_here(kind: str, process: str | None, where: Mapping[str, Json], number: int) -> None:
    """Send a signal to the process of the thread that reached a point.

    Raises:
        InjectionError: ``process`` names another one.
    """
    if process is not None and (process != "worker" or "worker" not in where):
        raise InjectionError(
            f"fault {kind}: expected no process, or the worker at a worker's point, since a "
            f"thread strikes its own; found {process!r}. Place the fault at a point of engine.*."
        )
    os.kill(os.getpid(), number)
