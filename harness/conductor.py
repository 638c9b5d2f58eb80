"""Runs one scenario once, from the first process to the last, and returns what was seen."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.child import Child
from harness.contracts import Parts
from harness.engine_servers import EngineServers
from harness.journal import JournalReader
from harness.launcher import Launcher
from harness.load import RequestLoad
from harness.monitors.progress import Progress
from harness.observation import EngineSeen, Halt, PushSeen, RankEnding, RunSeen
from harness.scenario import Scenario
from harness.stage import Stage
from harness.watch import Doing, Watch, send

CLOSE_LIMIT_S = 10.0
ROUTES = {
    "pause": "/pause?mode=keep&clear_cache=false",
    "start": "/start_weight_update",
    "start_draft": "/start_draft_weight_update",
    "finish": "/finish_weight_update",
}


@dataclass(frozen=True)
class _Commanded:
    """How one command ended on every rank, and the engines before it."""

    ranks: Mapping[int, RankEnding]
    halted: Halt | None
    before: tuple[EngineSeen, ...]
    stalls: tuple[str, ...]


class Conductor:
    """One run of one scenario.

    Args:
        out_dir: receives the journal and the logs.
        closing: whether to end with the clean push.
        servers: the real ones behind the engines, where their kind has any.
        doing: told, now and then, what the run is doing.
        watch: what waits for the ranks; another one is for measuring what it costs.
    """

    def __init__(
        self,
        launcher: Launcher,
        parts: Parts,
        scenario: Scenario,
        *,
        out_dir: Path,
        closing: bool = True,
        servers: EngineServers | None = None,
        doing: Doing = lambda what: None,
        watch: type[Watch] = Watch,
    ) -> None:
        self._scenario = scenario
        self._closing = closing
        self._tell = doing
        self._phase = "starting"
        self._stage = Stage(
            launcher, parts, scenario, out_dir=out_dir, servers=servers, doing=doing
        )
        self._reader = JournalReader(self._stage.journal_path)
        self._progress = Progress(self._reader, last_s=time.monotonic())
        self._watch = watch(self._stage, self._progress, doing=self._step)
        self._connected = False
        self._ranks_killed = False

    async def run(self) -> RunSeen:
        """Run the scenario. Everything it started has ended when this returns or raises."""
        stage = self._stage
        unclosed: list[str] = []
        released = False
        try:
            stage.record("scenario", name=self._scenario.name, proves=self._scenario.proves)
            await stage.prepare()
            begun_s = time.monotonic()
            await stage.start()
            async with RequestLoad([address.url for address in stage.addresses]):
                await self._stage_requests()
                pushes = [await self._push(n) for n in range(1, self._scenario.num_pushes + 1)]
                seconds = time.monotonic() - begun_s
                closing = await self._closing_push(pushes[-1]) if self._closing else None
                if (closing or pushes[-1]).halted is None:  # blocked ranks would not hear of it
                    unclosed = await self._close_ranks()
                    released = not unclosed and not self._ranks_killed
        finally:
            left = await stage.end(memory_released=released)
            self._progress.catch_up()
            self._reader.close()
        return RunSeen(
            pushes=tuple(pushes),
            closing=closing,
            fired=_fired(self._progress.events),
            events=tuple(self._progress.events),
            leftovers=(*unclosed, *left),
            seconds=seconds,
            total_seconds=time.monotonic() - begun_s,
        )

    def _begin(self, phase: str) -> None:
        self._phase = phase
        self._tell(phase)

    def _step(self, step: str) -> None:
        self._tell(f"{self._phase}: {step}" if step else self._phase)

    def _name_of(self, push: int) -> str:
        return f"push {push}" if push <= self._scenario.num_pushes else "closing push"

    async def _stage_requests(self) -> None:
        """Leave the engines in the state that the scenario wants its trainer to find."""
        for staged in self._scenario.before_connect:
            for address in self._stage.addresses:
                if staged.engine in ("all", address.index):
                    await self._stage.post(address, ROUTES[staged.request])

    # ---- pushes ----

    async def _push(self, number: int) -> PushSeen:
        """Restart what the scenario restarts before this push, connect if need be, and push.

        Engines are restarted after the connect, if there is one: a trainer that knows them must
        notice. A restarted trainer meets engines that were restarted before it.
        """
        restarts = [r for r in self._scenario.restarts if r.before_push == number]
        engines = [restart.engine for restart in restarts if restart.engine is not None]
        if any(restart.what == "trainer" for restart in restarts):
            await self._kill_ranks()
            await self._restart_engines(engines)
            engines = []
        connecting = None if self._connected else await self._connect(number)
        await self._restart_engines(engines)
        return await self._push_connected(number, connecting)

    async def _connect(self, number: int, *, disarmed: bool = False) -> _Commanded:
        """Start the trainer if there is none, and connect it, as part of push ``number``."""
        stage = self._stage
        push = 0 if number == 1 else number
        self._begin(f"{self._name_of(number)}, connect")
        stage.record("push", number=number, phase="begin")
        if not stage.ranks:
            await stage.start_ranks(push=push)
        before, _ = await asyncio.gather(self._engines_before(push), stage.ranks_ready())
        if disarmed:
            await self._disarm_ranks()
        ranks, halted = await self._watch.command({"cmd": "connect"})
        self._connected = halted is None and all(r.ending == "returned" for r in ranks.values())
        return _Commanded(ranks, halted, before, tuple(self._watch.diagnoses))

    async def _engines_before(self, push: int) -> tuple[EngineSeen, ...]:
        """Tell every engine which push comes, and return what they are before it."""
        telling = self._stage.tell_engines({"cmd": "push", "n": push})
        _, seen = await asyncio.gather(telling, self._stage.see_engines())
        return seen

    async def _push_connected(self, number: int, connecting: _Commanded | None) -> PushSeen:
        """Push; if the connect before it failed, that is the push's outcome."""
        stage = self._stage
        pushing = connecting
        if self._connected:
            self._begin(self._name_of(number))
            stage.record("push", number=number, phase="begin")
            before = await self._engines_before(number)
            ranks, halted = await self._watch.command({"cmd": "push", "n": number})
            stalls = () if connecting is None else connecting.stalls
            pushing = _Commanded(ranks, halted, before, (*stalls, *self._watch.diagnoses))
        assert pushing is not None, "a trainer that is not connected has tried to connect"
        after = await stage.sample(await stage.see_engines())
        stage.record("push", number=number, phase="end")
        return PushSeen(
            number=number,
            ranks=pushing.ranks,
            before=pushing.before,
            after=after,
            connect_attempts=None if connecting is None else _attempts(connecting.ranks),
            connect_failed=not self._connected,
            halted=pushing.halted,
            stalls=pushing.stalls,
            exported=len(stage.exported()),
        )

    async def _closing_push(self, last: PushSeen) -> PushSeen:
        """One more push without faults: by the same trainer where that can still push.

        Ranks that ended differently, or that must leave, are relaunched; so are dead and stuck
        engines, and after a deadlock all of them.
        """
        stage = self._stage
        self._begin(self._name_of(last.number + 1))
        torn = last.halted is not None or last.outcome == "mixed"
        if torn or any(_is_lost(rank) for rank in last.ranks.values()):
            await self._kill_ranks()
        await self._restart_engines(
            [seen.index for seen in last.after if torn or not seen.alive or seen.stuck]
        )
        await stage.tell_engines({"cmd": "disarm"})
        await self._disarm_ranks()
        number = last.number + 1
        connecting = None if self._connected else await self._connect(number, disarmed=True)
        return await self._push_connected(number, connecting)

    # ---- processes ----

    async def _disarm_ranks(self) -> None:
        for child in self._stage.ranks.values():
            await send(child, {"cmd": "disarm"})

    async def _kill_ranks(self) -> None:
        ranks = list(self._stage.ranks)
        await self._stage.kill_ranks()
        self._forget(f"rank:{rank}" for rank in ranks)
        self._connected = False
        self._ranks_killed = True

    async def _restart_engines(self, indexes: list[int]) -> None:
        if not indexes:
            return
        await self._stage.kill_engines(indexes)
        self._forget(f"engine:{index}" for index in indexes)
        await self._stage.start_engines(indexes)

    async def _close_ranks(self) -> list[str]:
        """Let every rank leave by itself; return a sentence for each that does not, or fails.

        The stage ends those. A rank that died in a push has been told of already.
        """
        living = [child for child in self._stage.ranks.values() if child.exit_status is None]
        self._ranks_killed |= len(living) < len(self._stage.ranks)
        for child in living:
            await send(child, {"cmd": "close"})
        refusals = await asyncio.gather(*(_closed(child) for child in living))
        # Nothing talks to the engines any more: they end while the ranks exit.
        waits = (child.wait(CLOSE_LIMIT_S) for child in living)
        endings, _ = await asyncio.gather(
            asyncio.gather(*waits, return_exceptions=True), self._stage.end_engines()
        )
        return [
            f"{child.name}, told to close: {refusal or _left(ending)}"
            for child, refusal, ending in zip(living, refusals, endings, strict=True)
            if refusal or ending != 0
        ]

    def _forget(self, names: Iterable[str]) -> None:
        self._progress.catch_up()
        for name in names:
            self._progress.forget(name)


def _is_lost(rank: RankEnding) -> bool:
    """Whether a rank cannot push again: it is gone, or is to go, or never comes back."""
    return rank.leaves or rank.ending in ("died", "blocked")


async def _closed(child: Child) -> str:
    """Wait until a rank has closed its target; return what that raised, or nothing."""
    with contextlib.suppress(TimeoutError):  # how it left says the rest
        while (reply := await child.receive(CLOSE_LIMIT_S)) is not None:
            if reply["reply"] == "close":
                return "" if reply["ok"] else f"its close raised {reply['type']}: {reply['error']}"
    return ""


def _left(ending: int | BaseException) -> str:
    """Say how a rank that was told to close failed to leave.

    Raises:
        LauncherError: the launcher failed, not the rank.
    """
    if isinstance(ending, TimeoutError):
        return f"found it alive after {CLOSE_LIMIT_S:g} s"
    if isinstance(ending, BaseException):
        raise ending
    return f"expected status 0, found {ending}"


def _attempts(ranks: Mapping[int, RankEnding]) -> int | None:
    """Return how many channels a connect built, or tried to."""
    told = [rank.result["attempts"] for rank in ranks.values() if "attempts" in rank.result]
    return max(told, default=None)


def _fired(events: list[dict[str, Any]]) -> dict[int, dict[str, tuple[int, ...]]]:
    """Return fault number -> process, or its worker -> the visits that it struck."""
    fired: dict[int, dict[str, tuple[int, ...]]] = {}
    for event in events:
        if event["event"] == "fault":
            struck = fired.setdefault(event["fault"], {})
            worker = event["where"].get("worker")
            who = event["who"] if worker is None else f"{event['who']}/worker:{worker}"
            struck[who] = (*struck.get(who, ()), event["count"])
    return fired
