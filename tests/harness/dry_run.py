"""A scenario's whole run without a process: the real conductor over a stage that writes down."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import harness.conductor
from harness.conductor import Conductor
from harness.contracts import EngineAddress, Json
from harness.observation import EngineSeen, Halt, RankEnding
from harness.parts import default_parts
from harness.scenario import Scenario
from harness.stage import Stage
from harness.watch import Watch

PORT = 4000


class DryStage(Stage):
    """The real stage up to the point where it would start, end or ask a process."""

    def _note(self, what: str, *details: Json) -> None:
        self.notes.append([what, *details])

    @property
    def notes(self) -> list[Json]:
        notes: list[Json] = vars(self).setdefault("_notes", [])
        return notes

    async def prepare(self) -> None:
        self._note("prepare", self.scenario.engines.count)

    async def start(self) -> None:
        await self.start_engines(range(self.scenario.engines.count))
        await self.start_ranks(push=0)

    async def start_engines(self, indexes: Sequence[int]) -> None:
        specs, _ = self._engine_specs(indexes)
        self._note("start", *map(asdict, specs))

    async def start_ranks(self, *, push: int) -> None:
        self._note("start", *map(asdict, self._rank_specs(push=push)))
        self.ranks = dict.fromkeys(range(self.scenario.trainer.ranks), _Ended())

    async def ranks_ready(self) -> None: ...

    async def kill_engines(self, indexes: Iterable[int]) -> None:
        self._note("kill engines", *indexes)

    async def kill_ranks(self) -> None:
        self._note("kill ranks")
        self.ranks = {}

    async def tell_engines(self, message: dict[str, Any]) -> None: ...

    async def see_engines(self) -> tuple[EngineSeen, ...]:
        seen = (EngineSeen(index=a.index, process=1, alive=True) for a in self.addresses)
        return tuple(seen)

    async def sample(self, seen: Sequence[EngineSeen]) -> tuple[EngineSeen, ...]:
        return tuple(seen)

    async def post(self, address: EngineAddress, route: str) -> None:
        self._note("post", address.index, route)

    async def end(self, *, memory_released: bool) -> list[str]:
        await self.http.close()
        self.record.close()
        return []

    async def end_engines(self) -> None: ...


class _Ended:
    """A rank that has left already."""

    name, exit_status = "rank", 0


class DryWatch(Watch):
    """Every command works at once on every rank; its limit is written down."""

    async def command(
        self, message: Mapping[str, Any]
    ) -> tuple[dict[int, RankEnding], Halt | None]:
        stage = self._stage
        assert isinstance(stage, DryStage)
        stage._note("command", dict(message), self._deadline_s)
        ending = RankEnding(ending="returned", version="1", result={"attempts": 1})
        return dict.fromkeys(stage.ranks, ending), None


@contextlib.asynccontextmanager
async def _no_load(urls: Sequence[str]) -> Any:
    yield


class _Launcher:
    """Gives directories and listeners, and starts nothing."""

    def __init__(self, folder: Path) -> None:
        self.scratch = SimpleNamespace(subdirectory=lambda name: folder)

    def listener(self, port: int) -> Any:
        return SimpleNamespace(getsockname=lambda: ("127.0.0.1", port or PORT))


def plan(scenario: Scenario, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return everything that a run of the scenario would do, as text.

    That is the config of every process, the requests before the connect, the commands to the ranks
    with their limit, the restarts, and what stands at the head of the journal.
    """
    monkeypatch.setattr(harness.conductor, "Stage", DryStage)
    monkeypatch.setattr(harness.conductor, "RequestLoad", _no_load)
    launcher: Any = _Launcher(folder)
    parts = default_parts("tests.harness.bad_targets:good")

    async def run() -> str:
        conductor = Conductor(
            launcher, parts, scenario, out_dir=folder, closing=False, watch=DryWatch
        )
        seen = await conductor.run()
        stage: Any = conductor._stage
        head = [event for event in seen.events if event["event"] == "scenario"]
        said = [[each["name"], each["proves"]] for each in head]
        return json.dumps([said, stage.notes], default=str)

    return asyncio.run(run())


def places(text: str) -> Iterator[str]:
    """Yield the lines of a plan; only to show where two plans differ."""
    yield from json.dumps(json.loads(text), indent=1).splitlines()
