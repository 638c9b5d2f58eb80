"""Plays calls on two engines and compares everything that they show after each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

import httpx

from conformance.differential.calls import Call, Checksum, Later, Request, Starve, Update
from conformance.differential.difference import Difference, Played, source_of
from conformance.differential.sides import NO_ANSWER, Answer, Player, Side, Weights
from conformance.differential.source import Code, literal, statements

VERSION = Request("GET /weight_info")
PAUSED = Request("GET /is_paused")
CHECKSUM = Checksum()
ABORT = Request("POST /abort_requests", {})
HEALTH = Request("GET /health")
STARTS = ("POST /start_weight_update", "POST /start_draft_weight_update")
FINISH = "POST /finish_weight_update"
RESUMING = ("POST /resume", "POST /wake_up")
SETTLE_S = 5.0  # for what both must answer as soon as one of them did

Waiting = list["asyncio.Task[httpx.Response]"]  # one completion: of the reference, of the other


class Duel:
    """Two fresh engines and one sequence of calls. Raises `Difference` where they part.

    Attributes:
        calls: those so far.
        newest: the newest step of weights that was sent.
        paused: whether both said so when they were looked at last.
        on_meta: whether a forward pass would meet a tensor without storage, as far as it shows;
            not known (false) with several workers.
        dead: whether both have died.
        waiting: completions that wait on both while they are paused.
    """

    def __init__(
        self,
        sides: tuple[Side, Side],
        *,
        workers: int,
        failing: Mapping[str, int] | None = None,
        limit_s: float,
    ) -> None:
        self.calls: list[Call] = []
        self.newest = 0
        self.paused = self.on_meta = self.dead = False
        self.waiting: list[Waiting] = []
        self._played: list[Played] = []
        # Since a start, whatever the checksums say: what has buffers alone waits for the finish.
        self._unfinished = False
        self._sides, self._workers, self._failing = sides, workers, dict(failing or {})
        self._limit_s = limit_s
        self._stack = AsyncExitStack()
        self._players: list[Player] = []

    @property
    def serves(self) -> bool:
        """Whether both engines can serve, and it is known when they must not."""
        return self._workers == 1 and all(side.served for side in self._sides)

    @property
    def failures(self) -> int:
        """How many of the calls so far the reference answered with 500."""
        return sum(each.answers[0].status == 500 for each in self._played)

    @property
    def last_status(self) -> int:
        """The status that the last call got."""
        return self._played[-1].answers[0].status

    async def open(self) -> None:
        """Make both engines."""
        for side in self._sides:
            making = side.make(workers=self._workers, failing=self._failing)
            self._players.append(Player(side, await self._stack.enter_async_context(making)))

    async def close(self) -> None:
        """End both engines."""
        tasks = [task for pair in self.waiting for task in pair if not task.done()]
        if tasks:
            for player in self._players:
                await self._response(ABORT, player)
            await asyncio.wait(tasks, timeout=SETTLE_S)
            for task in tasks:
                task.cancel()
        await self._stack.aclose()

    def may(self, call: Call) -> bool:
        """Whether a call makes sense now: one that never answers, or kills, is not made."""
        match call:
            case Later():
                return self.serves and self.paused and not (self.dead or self.waiting)
            case Starve():
                return self.serves and self.on_meta and not (self.paused or self.waiting)
            case Request(request=request) if request.startswith(RESUMING):
                return not (self.waiting and self.on_meta)
        return not self.dead or call == HEALTH

    async def play(self, call: Call, *, look: bool = True) -> None:
        """Make one call on both, and compare its answers and what both show then.

        Args:
            call: one that `may` allows.
            look: whether to compare more than the answers.

        Raises:
            Difference: something differs.
        """
        self.calls.append(call)
        if isinstance(call, Update):
            self.newest = max(self.newest, call.step)
        if isinstance(call, Later):
            pair = [asyncio.create_task(call.play(player.engine)) for player in self._players]
            self.waiting.append(pair)
            self._played.append(Played(call, (NO_ANSWER, NO_ANSWER)))
        elif isinstance(call, Checksum):
            await self._compare_weights(recorded=True)
        else:
            played = Played(call, self._answers(call, await self._responses(call)))
            self._same_answers(played)
            self._played.append(played)
            self.dead = self.dead or isinstance(call, Starve)
            if played.answers[0].status == 200 and isinstance(call, Request):
                opens = call.request in STARTS
                self._unfinished = opens or (self._unfinished and call.request != FINISH)
        if look and not self.dead:
            await self._look()

    # -- what both show ------------------------------------------------------------------------

    async def _look(self) -> None:
        for observed in (VERSION, PAUSED):
            answers = self._answers(observed, await self._responses(observed))
            self._same_answers(Played(observed, answers))
        self.paused = "true" in answers[0].says
        if self._workers == 1:
            await self._compare_weights(recorded=False)
        await self._settle()
        if self.serves and not (self.paused or self.on_meta or self.waiting):
            await self._compare_served()

    async def _compare_weights(self, *, recorded: bool) -> None:
        """Compare the checksums of both, parameter by parameter.

        Args:
            recorded: whether the request is part of the sequence. With several workers it must
                be, since it moves unread replies on.
        """
        responses = await self._responses(CHECKSUM)
        played = Played(CHECKSUM, self._answers(CHECKSUM, responses))
        self._same_answers(played)
        if recorded:
            self._played.append(played)
        unreadable = played.answers[0].status != 200
        self.on_meta = self._workers == 1 and (unreadable or self._unfinished)
        if played.answers[0].status != 200:
            return
        first, second = [
            player.weights(response.json()["checksums"], self.newest)
            for player, response in zip(self._players, responses, strict=True)
            if response is not None
        ]
        if parameters := _differing(first, second):
            found = [_steps(weights, parameters) for weights in (first, second)]
            raise self._difference("what the weights are", found, [self._holds(first, parameters)])

    async def _compare_served(self) -> None:
        found = []
        for player in self._players:
            assert player.side.served is not None
            serving = player.side.served(player.engine, self.newest)
            try:
                step = await asyncio.wait_for(serving, self._limit_s)
            except Exception as error:  # whatever it is, it was asked of both
                found.append(f"none ({type(error).__name__}: {error})")
            else:
                found.append("no step's" if step is None else f"step {step}'s")
        if found[0] != found[1]:
            last = statements(
                f"# A completion is then of {found[0]} weights,\n# not of {found[1]}."
            )
            raise self._difference("whose weights are served", found, [last])

    async def _settle(self) -> None:
        """Compare the completions that have ended; all must have, once neither is paused."""
        for pair in list(self.waiting):
            if self.paused and not any(task.done() for task in pair):
                continue
            await asyncio.wait(pair, timeout=SETTLE_S)
            found = [
                Later().view(task.result()) if task.done() else "still waiting" for task in pair
            ]
            if found[0] != found[1]:
                wanted = f'assert (await waiting)["finish_reason"] == {literal(found[0])}'
                raise self._difference("how a completion ends", found, [statements(wanted)])
            self.waiting.remove(pair)

    # -- asking and comparing ------------------------------------------------------------------

    async def _responses(self, call: Call) -> list[httpx.Response | None]:
        return [await self._response(call, player) for player in self._players]

    async def _response(self, call: Call, player: Player) -> httpx.Response | None:
        try:
            return await asyncio.wait_for(call.play(player.engine), self._limit_s)
        except TimeoutError:
            return None

    def _answers(
        self, call: Call, responses: Sequence[httpx.Response | None]
    ) -> tuple[Answer, Answer]:
        first, second = [
            NO_ANSWER if response is None else player.answer(call, response)
            for player, response in zip(self._players, responses, strict=True)
        ]
        return first, second

    def _same_answers(self, played: Played) -> None:
        first, second = played.answers
        if (first.status, first.view) != (second.status, second.view):
            found = [str(first), str(second)]
            what = f"the answer to {played.call}"
            raise self._difference(what, found, [played.code(differs=True)])
        if first is NO_ANSWER:
            raise AssertionError(f"{played.call}: expected an answer, found none from both.")

    def _difference(self, what: str, found: Sequence[str], last: Sequence[Code]) -> Difference:
        first, second = (side.name for side in self._sides)
        arguments = [f"workers={self._workers}"] * (self._workers != 1)
        arguments += [f"failing={literal(self._failing)}"] * bool(self._failing)
        return Difference(
            what,
            list(zip((first, second), found, strict=True)),
            source_of(self._played, last, names=(first, second), arguments=", ".join(arguments)),
            calls=self.calls,
            failing=self._failing,
        )

    def _holds(self, weights: Weights, parameters: Sequence[str]) -> Code:
        lines = ["found = await checksums(engine)"]
        for name in parameters:
            key = literal(name)
            if steps := weights.get(name):
                lines.append(f"assert found[{key}] == engine.checksums({min(steps)})[{key}]")
            else:
                each = f"engine.checksums(step)[{key}] for step in range({self.newest + 1})"
                lines.append(f"assert found[{key}] not in [{each}]")
        return statements("\n".join(lines))


def _differing(first: Weights, second: Weights) -> list[str]:
    """Return the parameters that differ, or that one of the two does not have."""
    apart = first.keys() ^ second.keys()
    return sorted(apart) or [
        key
        for key, steps in first.items()
        if None not in (steps, second[key]) and steps != second[key]
    ]


def _steps(weights: Weights, parameters: Sequence[str]) -> str:
    return ", ".join(f"{name} of {_step(weights.get(name))}" for name in parameters)


def _step(steps: frozenset[int] | None) -> str:
    if steps is None:
        return "nothing"
    return " and ".join(f"step {step}" for step in sorted(steps)) or "no step"
