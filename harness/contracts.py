"""The seams between the parts: what a fake, a fault, a target and the journal promise each other.

Everyone but ``resync`` may import this module; it imports nothing of ours and neither torch nor
FastAPI, so the launcher and ``resync-chaos check`` stay light.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from harness.engine_servers import EngineServers

Json = Any  # what ``json.dumps`` takes


class Recorder(Protocol):
    """Appends one event to the run's journal. Safe to call from any thread."""

    def __call__(self, event: str, /, **fields: Json) -> None: ...


class Exchange(Protocol):
    """One HTTP request at an engine's front end, as a fault sees it.

    A fault ends an exchange with exactly one of `respond`, `drop` or `hold`, or lets the engine
    answer with ``forward()``.
    """

    async def read_json(self) -> Json:
        """Return the request's JSON body, or ``{}``; the engine can still read it."""

    async def forward(self, *, deliver: bool = True) -> None:
        """Run the engine's own handler; ``deliver=False`` throws its answer away."""

    async def respond(self, status: int, body: Json) -> None:
        """Answer in the engine's place."""

    async def drop(self) -> None:
        """Close the connection without an answer; the client sees it at once."""

    async def hold(self) -> None:
        """Never answer; returns when the client has gone."""

    def signal(self, number: int, process: str | None, /) -> None:
        """Send a signal to the engine.

        Args:
            process: ``server``, ``core`` or ``worker`` (its first) of an engine that has them
                apart; ``None`` for all of it, the front end that was asked included.
        """


class Fault(Protocol):
    """One fault of a scenario, as it strikes. One implementation per kind, in ``harness/faults``.

    A kind implements the side it can strike on; ``harness.fault_points`` says which that is.
    """

    async def at_request(self, exchange: Exchange) -> None:
        """Strike a request at an engine's front end (points ``engine.*``)."""

    def in_thread(self, where: Mapping[str, Json]) -> None:
        """Strike in a worker's or a rank's own thread (points ``worker.*`` and ``rank.*``)."""


class Injector(Protocol):
    """Decides, in one process, whether a fault strikes here and now. Thread safe.

    ``where`` narrows the point: ``worker=1``, ``session="draft"``, ``tensor="..."``, ``port=...``.
    A fault that strikes has been recorded in the journal before it acts.
    """

    def pick(self, point: str, /, **where: Json) -> Fault | None:
        """Count this visit of ``point`` and return the fault that strikes it, or ``None``."""

    def reach(self, point: str, /, **where: Json) -> None:
        """`pick`, then let the fault act in this thread: it may sleep, block, raise or kill."""


class NoFaults:
    """The injector of a process that no scenario touches."""

    def pick(self, point: str, /, **where: Json) -> Fault | None:
        return None

    def reach(self, point: str, /, **where: Json) -> None:
        return None


def no_record(event: str, /, **fields: Json) -> None:
    """The recorder of code that runs outside a scenario."""


class Channel(Protocol):
    """A child process's line to the launcher: JSON objects, one a line, both ways."""

    def send(self, message: Json) -> None: ...

    def receive(self) -> Json | None:
        """Return the next message, or ``None`` when the launcher has gone."""


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """The limits of one scenario, in seconds."""

    init_s: float
    request_s: float
    process_group_s: float  # of the trainer's own groups
    rendezvous_s: float  # how long an engine worker waits for the sender to open the channel


@dataclass(frozen=True, kw_only=True)
class EngineAddress:
    """Where one engine listens, and how many workers it has."""

    index: int
    url: str
    workers: int

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


class WeightSource(Protocol):
    """vLLM's shape of a weight source. Iterating is a collective of all trainer ranks."""

    draft: bool

    def metadata(self) -> Sequence[Any]: ...

    def __iter__(self) -> Iterator[tuple[str, Any]]: ...


class TrainerEngine(Protocol):
    """vLLM's shape of a trainer-side transfer engine."""

    def send_weights(self) -> None: ...

    def shutdown(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class TargetContext:
    """What a target is given on each trainer rank.

    Attributes:
        rank: global rank.
        world_size: number of trainer ranks. The default process group is up.
        engines: every engine, the same on every rank; read it at each connect.
        owners: for each engine the rank that sends to it: rank 0, or the leader of its slot.
        stages: where several pipeline stages send in turn, the rank that sends for each; empty
            where one sender sends everything.
        stage: this rank's pipeline stage.
        transport: ``nccl`` or ``ipc``.
        draft: whether a push carries the draft model's weights too.
        timeouts: the scenario's limits.
        source: the weight source of this rank.
        open_channel: builds a trainer engine on every rank, given a client with vLLM's four
            methods and a source; each call is a fresh channel on a fresh port.
        observe: call it at each step of a push (``step`` names it); a fault may strike there. Give
            every bounded wait as ``observe("request", phase="begin", limit_s=..., engine=...,
            action=...)`` and again with ``phase="end"``: a rank in one is in no deadlock, and what
            ends its wait is named. Ranks of a target that tells of no request are taken to wait for
            any that an engine has not answered.
        options: the scenario's ``target_options``, passed through.
    """

    rank: int
    world_size: int
    engines: Sequence[EngineAddress]
    transport: str
    draft: bool
    timeouts: Timeouts
    source: WeightSource
    open_channel: Callable[[Any, WeightSource], TrainerEngine]
    observe: Callable[..., None]
    owners: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    stage: int = 0
    options: Mapping[str, Json] = field(default_factory=dict)


class Target(Protocol):
    """The module under test, on one rank. Every method is called on every rank, in this order:
    ``connect`` once, ``push`` for each push of the scenario, ``close`` once.

    An exception from ``connect`` or ``push`` is that rank's outcome ``raised``.
    """

    def connect(self) -> Mapping[str, Json]:
        """Connect to the engines. Return at least ``{"attempts": n}``, the channels it built."""

    def push(self) -> Mapping[str, Json]:
        """Push once. Return at least ``{"attempts": n}``."""

    def version(self) -> str:
        """Return the version that this trainer counts as published."""

    def close(self) -> None: ...


class TargetFactory(Protocol):
    """What ``--target package.module:factory`` names."""

    def __call__(self, context: TargetContext) -> Target: ...


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One process that the launcher starts.

    Attributes:
        name: ``rank:0``, ``engine:1``; the ``who`` of its journal events and the name of its log.
        entry: ``package.module:function``; called as ``function(config, channel, sockets)``.
        config: JSON, given to ``entry``.
        log_path: file that receives the process's stdout and stderr.
    """

    name: str
    entry: str
    config: Mapping[str, Json]
    log_path: Path


class Verdict(StrEnum):
    """What a scenario's run says; the exit code of a run is the worst of its scenarios'."""

    PASS = "pass"
    FAIL = "fail"
    HANG = "hang"
    INVALID = "invalid"

    @property
    def exit_code(self) -> int:
        return {"pass": 0, "fail": 10, "hang": 11, "invalid": 12}[self.value]


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One expectation or invariant, judged."""

    name: str  # "expect.outcome", "invariant.nothing_torn_served"
    ok: bool
    detail: str  # expected and found, in one sentence
    waived: str | None = None  # the scenario's reason


@dataclass(frozen=True, kw_only=True)
class EngineFinal:
    """One engine after the last push of the scenario (before the closing clean push)."""

    index: int
    version: str | None  # None: it does not answer
    generation: str  # running | paused | dead | stuck
    weights: str  # "push 2", "start", "mixed", "meta", "unknown"


@dataclass(frozen=True, kw_only=True)
class ScenarioResult:
    """One scenario (or matrix cell), run and judged. Reports are made from these."""

    name: str  # stable id: "session/one_failure[engine.update-ipc]"
    path: str
    proves: str
    verdict: Verdict
    sentence: str  # the verdict in one sentence
    outcomes: tuple[str, ...]  # one per push: resumed, raised, degraded, deadlock, mixed
    attempts: tuple[int, ...]  # one per push
    engines: tuple[EngineFinal, ...]
    checks: tuple[CheckResult, ...]
    seconds: float  # without the control run and the closing push
    total_seconds: float
    journal: Path
    evidence: Mapping[str, str] = field(default_factory=dict)  # process name -> stacks and pending


class WeightOracle(Protocol):
    """Knows, without moving a tensor, which weights an engine should hold."""

    def expected(
        self, *, seed: int, step: int, workers: int, draft: bool, model: str = "fake"
    ) -> str:
        """Return the fingerprint of the weights of push ``step``; 0 is what engines start with.

        ``model`` is that of the scenario (`Scenario.model`).
        """

    def fingerprint(self, checksums: Mapping[str, str]) -> str:
        """Return the fingerprint of what ``/weight_checker`` answered."""


@dataclass(frozen=True, kw_only=True)
class EngineKind:
    """One kind of engine that a scenario may ask for.

    Attributes:
        entry: ``package.module:function`` of the process that the harness calls an engine.
        preload: modules that the zygote imports for it, on top of `Parts.preload`.
        send_loop: the trainer's send loop where a scenario leaves it open.
        state_limit_s: how long reading its state may take, in seconds.
        servers: makes the servers behind the engines, given what starts processes and the folder
            for their logs; ``None`` where an engine is one process.
    """

    entry: str
    preload: tuple[str, ...] = ()
    send_loop: str
    state_limit_s: float
    servers: Callable[[Any, Path], EngineServers] | None = None


@dataclass(frozen=True, kw_only=True)
class SendLoop:
    """One implementation of the trainer's send loops.

    Attributes:
        opener: ``package.module:function`` that opens a channel on a rank.
        cuda_opener: the same on ranks with GPUs; ``None`` where it has no such channel.
        preload: modules that the zygote imports for it.
    """

    opener: str
    cuda_opener: str | None = None
    preload: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the command line puts together for the runner.

    Attributes:
        engines: kind -> how its engines run.
        send_loops: name -> where it is.
        rank_entry: ``package.module:function`` of a trainer rank's process.
        preload: modules that the zygote imports before it forks them.
        oracle: of the weights.
        target: default ``package.module:factory`` of the module under test.
        gpus: for real engines and their trainers, as ``CUDA_VISIBLE_DEVICES`` names them; without
            any they run on the CPU.
    """

    engines: Mapping[str, EngineKind]
    send_loops: Mapping[str, SendLoop]
    rank_entry: str
    preload: tuple[str, ...]
    oracle: WeightOracle
    target: str
    gpus: tuple[str, ...] = ()

    def send_loop(self, kind: str, asked: str) -> SendLoop:
        """Return the send loop of a scenario that asks for ``asked``, or leaves it to the kind."""
        return self.send_loops[self.engines[kind].send_loop if asked == "auto" else asked]


class Display(Protocol):
    """What the runner tells whoever watches. Any thread may call it, after ``begin``."""

    def begin(self, total: int) -> None:
        """The run starts; ``total`` scenarios are selected."""

    def started(self, name: str) -> None:
        """One scenario starts. Several may run at once."""

    def doing(self, name: str, what: str) -> None:
        """A running scenario has come to a new step.

        ``what`` is a few words: ``push 2``, or ``push 2: agree.start`` for a step of that phase.
        """

    def finished(self, result: ScenarioResult) -> None:
        """One scenario has its verdict."""

    def end(self) -> None:
        """The run is over, or was interrupted. Calling it twice is fine."""
