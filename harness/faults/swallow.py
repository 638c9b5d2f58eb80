"""A helper thread raises, nobody sees the exception, and whoever waits for it waits for ever."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import ClassVar

from harness.contracts import Exchange, Json
from harness.faults.kind import FaultKind


class Swallow(FaultKind):
    """Hand the work to a thread whose exception is swallowed, and wait for its result.

    At a front end the request is never answered, and the engine goes on with the others.
    """

    kind: ClassVar[str] = "swallow"
    strikes: ClassVar[tuple[str, ...]] = ("engine.*", "worker.*", "rank.*")
    never_returns: ClassVar[bool] = True

    def label(self) -> str:
        return "swallows an exception"

    async def at_request(self, exchange: Exchange) -> None:
        await exchange.hold()

    def in_thread(self, where: Mapping[str, Json]) -> None:
        is_done = threading.Event()

        def work() -> None:
            with contextlib.suppress(RuntimeError):
                _fail()
                is_done.set()

        threading.Thread(target=work, name="swallows", daemon=True).start()
        is_done.wait()


def _fail() -> None:
    raise RuntimeError("injected failure that nobody sees")
