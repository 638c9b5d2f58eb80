"""A trainer rank as a process: the launcher's entry point.

``main`` joins the world, builds the target under test around this rank's weight source, and then
does what the launcher says. Commands run on the main thread, as a trainer's push does; a second
thread reads the channel, so that a rank that is blocked in a collective can still be asked what it
waits for.
"""

from __future__ import annotations

import importlib
import os
import queue
import socket
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fakes.megatron.evidence import collectives
from fakes.megatron.layout import Layout
from fakes.megatron.roles import Roles
from fakes.megatron.source import MegatronWeightSource
from fakes.megatron.world import World
from fakes.model_spec import SHAPES, TINY, ModelShape, source_tensors
from fakes.send_loops import ChannelSettings, Slot
from harness.contracts import (
    Channel,
    EngineAddress,
    Json,
    Target,
    TargetContext,
    Timeouts,
    TrainerEngine,
)
from harness.injector import ScenarioInjector
from harness.journal import JournalWriter
from harness.targets import resolve

Opener = Callable[[ChannelSettings, Any, Any], TrainerEngine]

DEAF = 70  # exit status of a rank whose listening thread failed
OURS = "fakes.send_loops:open_channel"


class RankProcess:
    """One rank: its world, its weights, its target.

    Args:
        config: ``rank``, ``layout``, ``store`` (rendezvous file), ``seed``, ``engines``,
            ``transport``, ``packed``, ``draft``, ``timeouts``, ``scratch``, ``journal``,
            ``faults``, ``push`` (the push that this process starts in), ``target`` and
            ``target_options``; and, where they are not the fakes' own, ``model`` (a key of
            `fakes.model_spec.SHAPES`), ``senders`` (``one``, ``slots`` or ``stages``) and
            ``opener`` (``package.module:function`` with the arguments of
            `fakes.send_loops.open_channel`). ``environment`` is `main`'s.
        channel: the launcher's.
    """

    def __init__(self, config: Mapping[str, Json], channel: Channel) -> None:
        self.rank: int = config["rank"]
        self._channel = channel
        self._record = JournalWriter(Path(config["journal"]), f"rank:{self.rank}")
        self._injector = ScenarioInjector(
            config["faults"],
            role="rank",
            index=self.rank,
            record=self._record,
            push=config["push"],
        )
        timeouts = Timeouts(**config["timeouts"])
        layout = Layout(**config["layout"])
        self._roles = Roles(
            config.get("senders", "one"), layout, num_engines=len(config["engines"])
        )
        self._world = World(
            layout,
            rank=self.rank,
            store_path=Path(config["store"]),
            timeout_s=timeouts.process_group_s,
            kinds=("tp", "pp") if layout.expert == 1 else ("tp", "pp", "ep"),
            slot=self._roles.slot(self.rank),
        )
        self._shape = SHAPES[config.get("model", "fake")]
        self._source = MegatronWeightSource(
            self._world,
            seed=config["seed"],
            injector=self._injector,
            record=self._record,
            shape=self._shape,
            own_stage=bool(self._roles.stages),
        )
        self._engines = tuple(EngineAddress(**engine) for engine in config["engines"])
        self._told = list(self._engines)  # what the target is told at each connect
        self._target = self._build_target(config, timeouts)
        self.commands: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def _build_target(self, config: Mapping[str, Json], timeouts: Timeouts) -> Target:
        engines = self._engines
        roles, slot = self._roles, self._roles.slot(self.rank)
        settings = ChannelSettings(
            transport=config["transport"],
            packed=config["packed"],
            rank=self.rank,
            sender=roles.sender_of(self.rank),
            total_workers=sum(engine.workers for engine in engines),
            slot=Slot(slot, self._world.slot_group, roles.gpus_of(slot, engines)) if slot else None,
            rendezvous_s=timeouts.rendezvous_s,
            scratch_dir=Path(config["scratch"]),
            injector=self._injector,
            record=self._record,
            buffer_bytes=_buffer_bytes(self._shape),
        )
        open_channel = _resolve_opener(config.get("opener", OURS))
        context = TargetContext(
            rank=self.rank,
            world_size=self._world.world_size,
            engines=self._told,
            transport=config["transport"],
            draft=config["draft"],
            timeouts=timeouts,
            source=self._source,
            open_channel=partial(open_channel, settings),
            observe=self._observe,
            owners=roles.owners,
            stages=roles.stages,
            stage=self._world.coordinates["pp"],
            options=config["target_options"],
        )
        return resolve(config["target"])(context)

    def _observe(self, step: str, /, **details: Json) -> None:
        self._record("step", name=step, **details)
        if details.get("phase") == "begin":
            self._injector.reach("rank.step", name=step)

    # ---- the channel's thread ----

    def listen(self) -> None:
        """Answer what can be answered at once, and hand the rest to the main thread.

        A mistake of ours here would leave a rank that hears nothing, which looks like a hang of
        the target: the process ends instead.
        """
        try:
            self._listen()
        except BaseException:
            traceback.print_exc()
            os._exit(DEAF)

    def _listen(self) -> None:
        while (message := self._channel.receive()) is not None:
            if message["cmd"] == "evidence":
                self._channel.send({"reply": "evidence", **collectives()})
            elif message["cmd"] == "disarm":
                self._injector.disarm()
            else:
                self.commands.put(message)
        os._exit(0)  # the launcher has gone

    # ---- the main thread ----

    def work(self) -> None:
        """Run commands until told to close, or until an error says that this rank must leave."""
        self._channel.send({"reply": "ready"})
        while (message := self.commands.get()) is not None:
            command = message["cmd"]
            if command == "push":
                self._injector.begin_push(message["n"])
                self._source.step = message["n"]
            self._record("command", command=command, phase="begin")
            reply = self._run(command)
            self._record("command", command=command, phase="end", ok=reply["ok"])
            self._channel.send({"reply": command, **reply})
            if command == "close" or reply.get("leaves"):
                return

    def _tell_engines(self) -> None:
        told = list(range(len(self._engines)))
        self._injector.reach("rank.engines", engines=told)
        self._told[:] = [self._engines[index] for index in told]

    def _run(self, command: str) -> dict[str, Json]:
        """Run one command of the target; an exception is its outcome, not ours."""
        try:
            result: Mapping[str, Json] = {}
            if command == "connect":
                self._tell_engines()
                result = self._target.connect()
            elif command == "push":
                result = self._target.push()
            else:
                self._target.close()
        except Exception as error:
            return {
                "ok": False,
                "error": str(error),
                "type": type(error).__name__,
                "causes": [str(cause) for cause in getattr(error, "causes", ())],
                "result": _reported(error),
                "leaves": bool(getattr(error, "leaves_job", False)),
                "version": self._target.version(),
            }
        return {"ok": True, "result": dict(result), "version": self._target.version()}


def _resolve_opener(name: str) -> Opener:
    module, _, function = name.partition(":")
    opener: Opener = getattr(importlib.import_module(module), function)
    return opener


def _buffer_bytes(shape: ModelShape) -> int:
    """Return a buffer that cuts a packed pass of this model into as many chunks as the fake's."""
    ours, fakes = (
        sum(tensor.num_bytes for tensor in source_tensors(shape=each)) for each in (shape, TINY)
    )
    return ChannelSettings.buffer_bytes * ours // fakes


def _reported(error: Exception) -> dict[str, Json]:
    """Return what an error says of the push or the connect, if it says anything."""
    to_json = getattr(getattr(error, "report", None), "to_json", None)
    report: dict[str, Json] = dict(to_json()) if to_json is not None else {}
    attempts = getattr(error, "attempts", None)
    return report if attempts is None else {**report, "attempts": attempts}


def main(config: Mapping[str, Json], channel: Channel, sockets: list[socket.socket]) -> None:
    """Be one trainer rank until told to close, or until the launcher has gone.

    Args:
        config: of `RankProcess`, and optionally ``environment``: variables that are set first.
    """
    assert not sockets, "a rank is given no sockets"
    os.environ.update(config.get("environment", {}))
    rank = RankProcess(config, channel)
    threading.Thread(target=rank.listen, name="channel", daemon=True).start()
    rank.work()
