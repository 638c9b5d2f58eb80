"""One engine's line: every request under a total time-out, and none behind one that is still out.

A request that ended without an answer may still be carried out, in its turn, after whatever it
waits for in the engine. The line therefore remembers it, and before the next request it waits until
the engine is idle (``resync/idle.py``); an engine that does not come to rest is stuck, and is asked
nothing any more.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

from resync.errors import EngineLost, EngineMismatch, EngineRejected, EngineStuck, EngineTimeout
from resync.idle import in_flight, wait_until_idle
from resync.observer import Observer
from resync.timeouts import IDLE_TIME_OUTS, PushTimeouts
from resync.wire import Answer, Wire, WireError

TEXT_LIMIT = 500  # characters of an engine's answer that an error repeats


@dataclass(frozen=True)
class Late:
    """A request that ended without an answer: what was asked, and the limit that it had."""

    action: str
    limit_s: float


class Line:
    """Carries the requests of one engine.

    Attributes:
        late: the first request that ended without an answer since the engine was last idle.
        stuck: why the engine is stuck; ``None`` where it is not.

    Every method raises `EngineRejected` when the engine says no, `EngineTimeout` when no answer
    came within the limit, `EngineLost` when the connection failed, and `EngineStuck` when the
    engine is stuck.
    """

    def __init__(
        self, *, index: int, url: str, wire: Wire, timeouts: PushTimeouts, observe: Observer
    ) -> None:
        self.index = index
        self.url = url.rstrip("/")
        self.timeouts = timeouts
        self.observe = observe
        self.late: Late | None = None
        self.stuck: str | None = None
        self._wire = wire
        self._waiting = asyncio.Lock()

    async def get(self, action: str, path: str) -> dict[str, Any]:
        """Read something; returns the JSON object of the answer."""
        return await self.request(action, "GET", path, None, self.timeouts.request_s)

    async def post(
        self, action: str, path: str, body: Any = None, limit_s: float | None = None
    ) -> dict[str, Any]:
        """Ask for something; returns the JSON object of the answer, ``{}`` where it is empty."""
        limit_s = self.timeouts.request_s if limit_s is None else limit_s
        return await self.request(action, "POST", path, body, limit_s)

    async def request(
        self, action: str, method: str, path: str, body: Any, limit_s: float
    ) -> dict[str, Any]:
        """Make one request once the engine is idle; ``limit_s`` bounds the request alone."""
        await self.until_idle(action)
        answer = await self._exchange(action, method, path, body, limit_s)
        return self._fields(action, answer)

    async def until_idle(self, action: str = "idle") -> None:
        """Where a request ended without an answer, wait until the engine has come to rest.

        Raises:
            EngineStuck: it has not within ``IDLE_TIME_OUTS`` more time-outs of that request, now or
                earlier.
        """
        async with self._waiting:
            if self.stuck is None and self.late is not None:
                await self._come_to_rest(self.late)
        if self.stuck is not None:
            raise EngineStuck(self.index, action, self.stuck)

    async def _come_to_rest(self, late: Late) -> None:
        limit_s = IDLE_TIME_OUTS * late.limit_s
        self.observe("idle", phase="begin", engine=self.index, after=late.action, limit_s=limit_s)
        try:
            await wait_until_idle(self.in_flight, self._round_trip, limit_s=limit_s)
        except (TimeoutError, EngineTimeout):  # whichever of the two limits is first
            self.stuck = (
                f"{late.action} got no answer within {late.limit_s:g} s, and the engine did not "
                f"come to rest in the {limit_s:g} s after it. It is stuck and is asked nothing any "
                "more. Restart it"
            )
        else:
            self.late = None
        finally:
            self.observe("idle", phase="end", engine=self.index, ok=self.late is None)

    async def in_flight(self) -> float | None:
        """Return how many weight operations the engine has under way, past its core.

        ``None`` where it has had none since it was started.
        """
        return in_flight((await self._past_the_queue("metrics", "/metrics")).text)

    async def _round_trip(self) -> None:
        """Go through the engine's core, behind all that waits in it."""
        await self._past_the_queue("idle", "/weight_info")

    async def _past_the_queue(self, action: str, path: str) -> Answer:
        """Read something although a request is out."""
        limit_s = IDLE_TIME_OUTS * max(
            self.timeouts.request_s, self.late.limit_s if self.late else 0
        )
        answer = await self._exchange(action, "GET", path, None, limit_s)
        self._require_ok(action, answer)
        return answer

    async def _exchange(
        self, action: str, method: str, path: str, body: Any, limit_s: float
    ) -> Answer:
        """Make one request under a total time-out, whatever is known of the engine."""
        begun_s = time.monotonic()
        details = {"engine": self.index, "action": action, "limit_s": limit_s}
        self.observe("request", phase="begin", **details)
        ok = False
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._wire.request(method, self.url + path, body)
            ok = answer.status == 200
            return answer
        except TimeoutError:
            self.note_late(action, limit_s)
            raise EngineTimeout(
                self.index,
                action,
                f"expected an answer within {limit_s:g} s, found none. The engine may still carry "
                "the request out",
            ) from None
        except WireError as error:
            self.note_late(action, limit_s)
            raise EngineLost(self.index, action, f"no answer from {self.url}: {error}") from error
        except asyncio.CancelledError:  # given up
            self.note_late(action, limit_s)
            raise
        finally:
            seconds = round(time.monotonic() - begun_s, 6)
            self.observe("request", phase="end", ok=ok, seconds=seconds, **details)

    def note_late(self, action: str, limit_s: float = 0.0) -> None:
        """Expect that a request of that kind is still being carried out."""
        if self.late is None:
            limit_s = limit_s if action == "init" else self.timeouts.request_s
            self.late = Late(action, limit_s)

    def _require_ok(self, action: str, answer: Answer) -> None:
        if answer.status != 200:
            raise EngineRejected(self.index, action, answer.status, answer.text[:TEXT_LIMIT])

    def _fields(self, action: str, answer: Answer) -> dict[str, Any]:
        self._require_ok(action, answer)
        if not answer.content:
            return {}
        try:
            fields = json.loads(answer.content)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise EngineMismatch(
                self.index, action, f"expected a JSON object, found {answer.text[:TEXT_LIMIT]!r}"
            )
        return fields
