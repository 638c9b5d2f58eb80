"""What a case is, what a maker of trainer engines gives to it, and what a trace says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

import torch

from harness.contracts import Injector, Json, Recorder, TrainerEngine

# When an engine refuses a call:
#   at once         before its workers hear of it
#   before the peek the same, and the trainer knows by the time that it looks at the call
#   in the pass     before its workers hear of it, once the trainer has begun to gather
#   afterwards      its workers have done what the call asks for
#   receiving       its workers are receiving, and go on
#   never           it does not answer at all
When = Literal["at once", "before the peek", "in the pass", "afterwards", "receiving", "never"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong in one push. By default nothing does.

    Attributes:
        refuses: the client call that raises: ``init``, ``start``, ``update`` or ``finish``.
        nth: which of these calls, from 1.
        when: see above.
        error: what the client raises.
        drops_channel: the client destroys the sender's communicator before it raises.
        port_taken: somebody listens on the sender's rendezvous port.
        gather_fails_on: the rank on which gathering w2 raises.
        handles_fail_on: the rank on which gathering the handles raises.
        declares: what the source's metadata says; see `doubles.Source`.
        large: w2 has 256 bytes instead of 64.
    """

    refuses: str | None = None
    nth: int = 1
    when: When = "at once"
    error: type[Exception] = RuntimeError
    drops_channel: bool = False
    port_taken: bool = False
    gather_fails_on: int | None = None
    handles_fail_on: int | None = None
    declares: Literal["all", "another name", "one more", "one less"] = "all"
    large: bool = False


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """What one rank did in one push, from opening the channel on.

    The lines of a trace: ``gather w0`` of the source, ``metadata``; ``broadcast 64B`` on the
    transfer channel, ``rendezvous`` on it; ``all_gather int64`` and ``barrier`` on the trainer's
    group; ``client.start`` a call of the engines' control plane; ``submit``, ``peek``, ``result``,
    ``join`` and ``leave`` what is done with a call in a side thread (`ThreadPoolExecutor.submit`,
    `Future.done`, `Future.result`, `shutdown` with and without waiting); ``* rank.barrier`` a fault
    point; ``journal ...`` an event for the journal.

    Attributes:
        main: what its main thread did, in order.
        side: what its other threads did, in order. Only the sender has any.
        ended: ``returned``, ``raised <type>: <message>`` or ``blocked in <line>``, for good.
        engine: the engine beside the sender afterwards: ``idle``, ``receiving`` (its workers wait
            for a broadcast that never comes) or ``joining``.
        payloads: what the client's calls carried, in order; ports and memory left out.
    """

    main: Sequence[str]
    side: Sequence[str] = ()
    ended: str = "returned"
    engine: str = "idle"
    payloads: Sequence[Json] = ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One push that must go as vLLM's does, whatever the number of ranks.

    Attributes:
        name: unique; says transport, packing and fault.
        facts: where the fact sheet describes it.
        transport: ``nccl`` or ``ipc``.
        packed: whether tensors share a buffer.
        buffer_bytes: its size.
        fault: what goes wrong.
        sender: what rank 0 does.
        peers: what every other rank does, but for those in ``special``.
        special: rank -> what that one does.
    """

    name: str
    facts: str
    transport: str
    packed: bool
    fault: Fault = field(default_factory=Fault)
    buffer_bytes: int = 128
    sender: RankTrace
    peers: RankTrace
    special: Mapping[int, RankTrace] = field(default_factory=dict)

    def expected(self, num_ranks: int) -> list[RankTrace]:
        """Return what each rank must do."""
        sender = self.sender if num_ranks > 1 else replace(self.sender, main=_alone(self.sender))
        return [sender, *(self.special.get(rank, self.peers) for rank in range(1, num_ranks))]


def _alone(trace: RankTrace) -> list[str]:
    """Return what a rank without peers does: no collective of the send loop."""
    shared = ("all_gather", "barrier", "* rank.barrier", "journal barrier")
    return [line for line in trace.main if not line.startswith(shared)]


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What a trainer engine is opened with on one rank.

    Attributes:
        transport: ``nccl`` or ``ipc``.
        packed: whether tensors share a buffer.
        buffer_bytes: its size.
        rank: of the trainer; 0 is the sender.
        rendezvous_s: how long the sender waits for the engine's worker to join.
        directory: for shared memory.
        injector: fault points go there.
        record: events for the journal go there.
    """

    transport: str
    packed: bool
    buffer_bytes: int
    rank: int
    rendezvous_s: float
    directory: Path
    injector: Injector
    record: Recorder


class Receiver(Protocol):
    """The engine's one worker: its end of the channel."""

    def init(self, init_info: Mapping[str, Json]) -> None:
        """Join the channel."""

    def receive(self, update_info: Mapping[str, Json]) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the tensors as they arrive."""


class Notebook(Protocol):
    """Where a maker's parts note what only they can see."""

    def line(self, text: str) -> None:
        """Note that something was done, in the calling thread."""

    def inside(self, text: str) -> AbstractContextManager[None]:
        """Note a line, and that its thread is inside of it until the context is left."""

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Note, without a line, that the thread waits until the context is left."""

    def enqueued(self, num_bytes: int) -> None:
        """Note a broadcast on the transfer channel."""


class TrainerMaker(Protocol):
    """Makes trainer engines, each in a rank's process of its own."""

    def join(self, rank: int, num_ranks: int, directory: Path) -> object:
        """Join torch's default process group, a gloo one; the result is kept until the end."""

    def open(
        self, opening: Opening, client: object, source: object, notes: Notebook
    ) -> TrainerEngine:
        """Open a channel on this rank, with the one worker of `receiver` at its other end.

        The communicator notes ``rendezvous`` (`Notebook.inside`) while it is being made, each
        broadcast, and waits as ``synchronize`` where it blocks until a broadcast is done.
        """

    def receiver(self, transport: str) -> Receiver:
        """Return the engine's worker; it lives in the sender's process."""


MakeTrainer = Callable[[], TrainerMaker]
