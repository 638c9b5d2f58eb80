"""What stands behind engines that are not ours, and outlives their scenarios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from harness.contracts import Json


class EngineServers(Protocol):
    """The servers behind engines that are not ours; a healthy one outlives the scenario.

    A server belongs to one engine of one scenario at a time. What ``acquire`` returns is JSON: it
    is given to the engine's process as ``server`` in its config.
    """

    async def acquire(
        self, *, index: int, workers: int, gpus: Sequence[str] = (), doing: Callable[[str], None]
    ) -> Json:
        """Return a healthy server for engine ``index``, started if need be.

        Its workers get one of ``gpus`` each; without any it runs on the CPU.

        Raises:
            EngineServerError: none came up.
        """

    async def release(self, server: Json) -> None:
        """Take a server back: it is kept if it is healthy, and ended otherwise."""

    async def discard(self, server: Json) -> None:
        """End a server and every process of it."""

    async def close(self) -> None:
        """End every server."""


class EngineServerError(Exception):
    """A server did not come up: says its command, its exit status and the end of its log."""
