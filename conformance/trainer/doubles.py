"""What a traced trainer engine talks to: a weight source, and the control plane of one engine."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from conformance.trainer.contract import Fault, Receiver
from conformance.trainer.notes import ENGINE_THREAD, Notes
from harness.contracts import Json

NUM_TENSORS = 5
NUM_ELEMENTS = 16  # 64 bytes
ITEM_BYTES = 4  # float32
LIMIT_S = 10.0  # on every wait here


@dataclass(frozen=True)
class ParamMeta:
    """Name, dtype on the wire and full shape of one tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class Source:
    """The fact sheet's source: five float32 tensors of 64 bytes, each gathered from all ranks.

    Attributes:
        began: set once a tensor was asked for.
    """

    draft = False

    def __init__(self, notes: Notes, fault: Fault) -> None:
        self.began = threading.Event()
        self._notes = notes
        self._fault = fault
        # torch's own: what a case replaces is the send loop's.
        self._all_gather = dist.all_gather

    def metadata(self) -> list[ParamMeta]:
        """Return what iteration yields, or what the fault says instead."""
        self._notes.line("metadata")
        metas = [
            ParamMeta(f"w{index}", torch.float32, (self._elements(index),))
            for index in range(NUM_TENSORS)
        ]
        match self._fault.declares:
            case "another name":
                metas[2] = ParamMeta("x", torch.float32, metas[2].shape)
            case "one more":
                metas.append(ParamMeta("w5", torch.float32, (NUM_ELEMENTS,)))
            case "one less":
                metas.pop()
        return metas

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Gather each tensor's shards over the default group, as Megatron does."""
        ranks = dist.get_world_size()
        for index in range(NUM_TENSORS):
            name = f"w{index}"
            self.began.set()
            if index == 2 and self._fault.gather_fails_on == dist.get_rank():
                self._notes.line(f"gather {name}")
                raise RuntimeError(f"gather {name} failed")
            shard = torch.full((self._elements(index) // ranks,), float(index))
            shards = [torch.empty_like(shard) for _ in range(ranks)]
            with self._notes.inside(f"gather {name}", collective=True):
                self._all_gather(shards, shard)
            yield name, torch.cat(shards)

    def _elements(self, index: int) -> int:
        return 4 * NUM_ELEMENTS if index == 2 and self._fault.large else NUM_ELEMENTS


class Client:
    """The engine's control plane with vLLM's four methods; its one worker receives for real.

    Attributes:
        trainer: the engine under test, once it is open.
    """

    def __init__(self, notes: Notes, fault: Fault, receiver: Receiver, source: Source) -> None:
        self.trainer: Any = None
        self._notes = notes
        self._fault = fault
        self._receiver = receiver
        self._source = source
        self._calls: Counter[str] = Counter()

    def init_weight_transfer_engine(self, init_info: dict[str, Json]) -> None:
        """Let the worker join."""
        self._call("init", init_info, lambda: self._receiver.init(init_info))

    def start_weight_update(self) -> None:
        """Open a session."""
        self._call("start", None, lambda: None)

    def update_weights(self, update_info: dict[str, Json]) -> None:
        """Let the worker receive; returns when it has everything."""
        self._call("update", update_info, lambda: self._receive(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Close the session."""
        self._call("finish", weight_version, lambda: None)

    def _call(self, name: str, payload: Json, work: Callable[[], object]) -> None:
        self._calls[name] += 1
        with self._notes.inside(f"client.{name}"):
            self._notes.say("payload", payload=_comparable(payload))
            if self._fault.refuses == name and self._fault.nth == self._calls[name]:
                self._refuse(name, work)
            work()

    def _refuse(self, name: str, work: Callable[[], object]) -> None:
        fault = self._fault
        match fault.when:
            case "never":
                with self._notes.waiting("no answer"):
                    threading.Event().wait()
            case "in the pass":
                assert self._source.began.wait(LIMIT_S), "the trainer never began to gather"
            case "receiving":
                self._receive_beside(work)
            case "afterwards":
                work()
        if fault.drops_channel:
            self.trainer.model_update_group.destroy()
        elif fault.when == "in the pass":
            self._notes.say("deaf")
        raise fault.error(f"{name} refused")

    def _receive(self, update_info: Mapping[str, Json]) -> None:
        with self._notes.waiting("receive"):
            if "ipc_handles" not in update_info:  # broadcasts: the worker waits for each
                expected = sum(math.prod(shape) for shape in update_info["shapes"]) * ITEM_BYTES
                self._notes.say("expects", bytes=expected)
            for _, tensor in self._receiver.receive(update_info):
                self._notes.say("received", bytes=tensor.nbytes)

    def _receive_beside(self, work: Callable[[], object]) -> None:
        """Let the worker receive in a thread of its own, and return once it is at it."""
        begun = threading.Event()

        def run() -> None:
            begun.set()
            work()

        threading.Thread(target=run, name=ENGINE_THREAD, daemon=True).start()
        assert begun.wait(LIMIT_S), "the engine's worker did not begin"
        assert self._source.began.wait(LIMIT_S), "the trainer never began to gather"


def _comparable(payload: Json) -> Json:
    """Return a payload without what differs from run to run."""
    if not isinstance(payload, dict):
        return payload
    shown = dict(payload)
    if "master_port" in shown:
        shown["master_port"] = type(shown["master_port"]).__name__
    match shown.get("ipc_handles"):
        case dict() as handles:
            shown["ipc_handles"] = sorted(handles)
        case list() as several:
            shown["ipc_handles"] = [sorted(handles) for handles in several]
    return shown
