"""The scenario language: what a file may say, and one scenario as the runner uses it.

A file becomes scenarios in ``harness.scenario_file``; what needs more than one field to judge is
in ``harness.scenario_checks``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, create_model
from pydantic_core import PydanticCustomError

from harness.contracts import Json
from harness.fault_points import FAULT_POINTS
from harness.faults import FAULTS

INVARIANTS = {
    "ranks_agree": "the ranks that completed an agreement report the same outcome",
    "ended_in_time": "every process ended or answered inside the scenario's deadline",
    "serving_consistent": "label, checksum and trainer agree wherever an engine serves",
    "nothing_torn_served": "no token came from torn, dirty or unpublished weights",
    "outcome_table": "generation, label and bytes are what the outcome allows",
    "no_open_session": "no worker is left inside a weight update",
    "nothing_left_behind": "no process, port or shared memory is left",
    "clean_push": "one more push without faults succeeds",
}

# The narrowest dimension of the tiny model that is split over ranks or workers.
MAX_SHARDS = 16
NUM_EXPERTS = 4  # of the mixture of experts
# A real server takes some 2 GB a worker, and its attention has two heads.
MAX_REAL_WORKERS = 2
MAX_REAL_ENGINES = 3

Count = Annotated[int, Field(ge=1)]
Index = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Text = Annotated[str, Field(min_length=1)]
STRICT = ConfigDict(strict=True, allow_inf_nan=False)


def _index_or_all(value: Any) -> Any:
    if value == "all" or (type(value) is int and value >= 0):
        return value
    raise PydanticCustomError("expected", "a number from 0, or all")


def _nth(value: Any) -> Any:
    if value == "always":
        return value
    counts = value if isinstance(value, list | tuple) else [value]
    if counts and all(type(count) is int and count >= 1 for count in counts):
        return tuple(counts)
    raise PydanticCustomError("expected", "a count from 1, a list of counts, or always")


def _per_engine(*words: str) -> BeforeValidator:
    """Take one value for all engines, or a list of them that becomes a tuple."""
    known = f"one of {', '.join(words)}" if words else "a string"

    def check(value: Any) -> Any:
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        if all(isinstance(each, str) and (not words or each in words) for each in values):
            return values if isinstance(value, list | tuple) else value
        step = f"Put it in quotes{' and use one of the words' if words else ''}."
        context = {"known": known, "step": step}
        raise PydanticCustomError("expected", "{known}, or a list of them", context)

    return BeforeValidator(check)


IndexOrAll = Annotated[int | Literal["all"], BeforeValidator(_index_or_all)]
Nth = Annotated[tuple[int, ...] | Literal["always"], BeforeValidator(_nth)]


class Section(BaseModel):
    """One mapping of a scenario file. Nothing is coerced and nothing unknown is taken."""

    model_config = ConfigDict(frozen=True, extra="forbid", **STRICT)


class Trainer(Section):
    """The trainer's ranks. Data parallel is what remains of them.

    With ``expert_parallel`` above 1 the model is a mixture of experts, which are spread over the
    data parallel ranks.

    Attributes:
        senders: who sends weights to the engines. ``one``: rank 0. ``slots``: each engine has its
            slot of the ranks, whose first one leads it and sends to it (expert routing, on ipc).
            ``stages``: the first rank of each pipeline stage sends that stage's layers, in turn and
            inside one session (on nccl).
        send_loop: ours, or vLLM's own trainer classes; by default those that belong to the engines.
    """

    ranks: Annotated[int, Field(ge=1, le=256)] = 2
    pipeline_parallel: Count = 1
    expert_parallel: Count = 1
    senders: Literal["one", "slots", "stages"] = "one"
    send_loop: Literal["auto", "ours", "vllm"] = "auto"
    # As far as the tiny model can be split.
    tensor_parallel: Count = Field(
        default_factory=lambda given: math.gcd(
            max(given["ranks"] // given["pipeline_parallel"], 1), MAX_SHARDS
        )
    )

    @property
    def data_parallel(self) -> int:
        """Replicas of the sharded model."""
        return self.ranks // (self.tensor_parallel * self.pipeline_parallel)


class Engines(Section):
    """The inference servers, all alike.

    Attributes:
        kind: our fakes, or real vLLM servers on CPU.
        profile: the session rules of a fake one.
    """

    count: Annotated[int, Field(ge=1, le=64)] = 1
    workers: Count = 1
    kind: Literal["fake", "vllm"] = "fake"
    profile: Literal["vllm-0.32", "vllm-next"] = "vllm-0.32"


class TimeoutLimits(Section):
    """The fields of `harness.contracts.Timeouts`, in seconds, with their defaults."""

    init_s: Seconds = 10.0
    request_s: Seconds = 10.0
    process_group_s: Seconds = 30.0
    rendezvous_s: Seconds = 5.0


class FaultSpec(Section):
    """Where and when one fault strikes. The fields of its kind are added in `FAULT_SPECS`.

    Attributes:
        at: a name of ``harness.fault_points``.
        engine, rank: the process, or ``all``: the one of the two that the point's role takes.
        worker: at ``worker.*`` points only; every worker where it is not given.
        push: 0 is the connect before the first push. The connect of a trainer that was restarted
            before push n belongs to push n.
        nth: visits that it strikes, counted from 1 over those that match all selectors, for each
            push and worker afresh.
        session, tensor, name: narrow the point; ``tensor`` and ``name`` are glob patterns.
        required: a scenario whose required fault never struck is ``invalid``.
    """

    kind: str
    at: str
    engine: IndexOrAll | None = None
    rank: IndexOrAll | None = None
    worker: IndexOrAll | None = None
    push: Index = 1
    nth: Nth = (1,)
    session: Literal["target", "draft"] | None = None
    tensor: Text | None = None
    name: Text | None = None
    required: bool = True

    @property
    def role(self) -> str:
        """Who must be named to address it: ``engine`` (also for its workers) or ``rank``."""
        return "rank" if FAULT_POINTS[self.at].role == "rank" else "engine"

    @property
    def index(self) -> int | Literal["all"] | None:
        """The engine or the rank that it strikes."""
        return self.rank if self.role == "rank" else self.engine

    def selectors(self) -> dict[str, Json]:
        """What narrows the point, as `harness.contracts.Injector` knows it."""
        given: dict[str, Json] = {
            key: getattr(self, key) for key in ("worker", "session", "tensor", "name")
        }
        return {key: value for key, value in given.items() if value not in (None, "all")}

    def options(self) -> dict[str, Json]:
        """The fields of the kind itself."""
        return self.model_dump(exclude=set(FaultSpec.model_fields))


def _spec_of(kind: str) -> type[FaultSpec]:
    """Return `FaultSpec` with the fields of one kind beside its own."""
    own: dict[str, Any] = {
        name: (field.annotation, field) for name, field in FAULTS[kind].model_fields.items()
    }
    return create_model(f"FaultSpec_{kind}", __base__=FaultSpec, **own)


FAULT_SPECS = {kind: _spec_of(kind) for kind in FAULTS}


class Restart(Section):
    """Stop and start the trainer (all ranks) or one engine between two pushes."""

    what: Literal["trainer", "engine"]
    engine: Index | None = None
    before_push: Count


class StagedRequest(Section):
    """One request sent to engines before the trainer connects, to leave them in some state."""

    engine: IndexOrAll = "all"
    request: Literal["pause", "start", "start_draft", "finish"]


Outcome = Literal["resumed", "raised", "degraded", "deadlock", "mixed"]
PerEngine = str | tuple[str, ...] | None
Versions = Annotated[PerEngine, _per_engine()]
Generations = Annotated[PerEngine, _per_engine("running", "paused", "dead", "stuck")]
Bytes = Annotated[PerEngine, _per_engine("unchanged", "dirty", "committed", "stuck")]
# The values of ``harness.monitors.classify.Kind``.
Stall = Literal["deadlock", "waiting", "crashed", "frozen", "busy", "slow", "stuck"]


class Expectation(Section):
    """What must be true after one push. What is not given is not checked.

    ``version``, ``generation`` and ``bytes`` hold for every engine, or are lists with one entry
    per engine. A connect that fails is the outcome of the push that it comes before.

    Attributes:
        outcome: of all ranks; ``deadlock``, and ``mixed`` where some ranks raised and others did
            not, are for negative controls.
        attempts: complete sends within the push.
        connect_attempts: channels that the connect before the push built or tried to build.
        retries: requests of the push that were repeated in place.
        version: label that the engine reports.
        generation: ``dead`` where the engine does not answer, ``stuck`` where a call never ends.
        bytes: what the target reports of the engine's weights.
        error: part of the message, on every rank that raised.
        names_engine: the message names this engine.
        stall: what the monitor called one of the push's stalls, or a death in it.
    """

    outcome: Outcome
    attempts: Index | None = None
    connect_attempts: Index | None = None
    retries: Index | None = None
    version: Versions = None
    generation: Generations = None
    bytes: Bytes = None
    error: Text | None = None
    names_engine: Index | None = None
    stall: Stall | None = None

    def per_engine(
        self, what: Literal["version", "generation", "bytes"], num_engines: int
    ) -> tuple[str, ...] | None:
        """Return what each engine must show, by engine number; ``None`` where nothing is said."""
        value: PerEngine = getattr(self, what)
        if value is None or isinstance(value, tuple):
            return value
        return (value,) * num_engines


_TOPOLOGY = {
    "trainer", "engines", "transport", "packed", "draft", "timeouts", "seed", "pushes",
    "target", "target_options",
}  # fmt: skip


class Scenario(Section):
    """One scenario: a file, or one cell of its matrix.

    Attributes:
        proves: the sentence that a run shows to be true.
        source: the incident behind it.
        packed: whether tensors travel packed into chunks.
        draft: whether a push carries a draft model too.
        pushes: how many pushes are made.
        target: ``package.module:factory``; without it the one of the command line.
        target_options: passed to the target as they are.
        expect: one for every push, or a single one that holds for each.
        tolerates: why the faults are meant to make no difference to ``expect``.
        waive: invariant -> why it need not hold here.
        breaks: invariants that must turn out broken, and no others: for negative controls.
        only_as_written: ``vllm`` or ``vllm-next`` -> why ``--engines`` cannot move it there.
        deadline_s: limit of each connect and each push, in seconds; follows from the time-outs
            where ``None``.
    """

    proves: Text
    source: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    trainer: Trainer = Trainer()
    engines: Engines = Engines()
    transport: Literal["ipc", "nccl"]
    packed: bool = True
    draft: bool = False
    timeouts: TimeoutLimits = TimeoutLimits()
    seed: int = 1
    pushes: Count
    faults: tuple[FaultSpec, ...] = ()
    restarts: tuple[Restart, ...] = ()
    before_connect: tuple[StagedRequest, ...] = ()
    target: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    target_options: dict[str, Any] = Field(default_factory=dict)
    expect: tuple[Expectation, ...]
    tolerates: Text | None = None
    waive: dict[str, Text] = Field(default_factory=dict)
    breaks: Annotated[tuple[str, ...], Field(strict=False)] = ()  # a YAML list
    only_as_written: dict[Literal["vllm", "vllm-next"], Text] = Field(default_factory=dict)
    deadline_s: Seconds | None = None

    _name: str = PrivateAttr(default="")
    _path: Path = PrivateAttr(default=Path())

    @property
    def name(self) -> str:
        """Stable id: the path under the scenarios' root without ``.yaml``, and the cell."""
        return self._name

    @property
    def path(self) -> Path:
        """The file it was read from."""
        return self._path

    @property
    def num_pushes(self) -> int:
        return self.pushes

    @property
    def model(self) -> str:
        """Which of the tiny models it sends."""
        moe = self.trainer.expert_parallel > 1
        return f"{self.engines.kind}_moe" if moe else self.engines.kind

    def named(self, name: str, path: Path) -> Scenario:
        """Return this scenario under the given id and file."""
        copy = self.model_copy()
        copy._name, copy._path = name, path
        return copy

    def expectation(self, push: int) -> Expectation:
        """Return what push number ``push`` (from 1) must show."""
        assert 1 <= push <= self.pushes, f"push {push} of {self.pushes}"
        return self.expect[0] if len(self.expect) == 1 else self.expect[push - 1]

    def faults_for(self, role: Literal["engine", "rank"], index: int) -> list[dict[str, Json]]:
        """Return the faults addressed to one process, as `harness.injector` takes them.

        An engine is given those of its workers too. ``fault`` is the number in this scenario.
        """
        return [
            {
                "fault": number,
                "kind": fault.kind,
                "at": fault.at,
                "index": fault.index,
                "push": fault.push,
                "nth": fault.nth if fault.nth == "always" else list(fault.nth),
                "where": fault.selectors(),
                "options": fault.options(),
            }
            for number, fault in enumerate(self.faults)
            if fault.role == role and fault.index in ("all", index)
        ]

    def control(self) -> Scenario:
        """Return the same run with nothing done to it, which must simply succeed."""
        calm: Mapping[str, Any] = {
            "proves": "The same run without faults succeeds.",
            "source": None,
            "faults": (),
            "restarts": (),
            "before_connect": (),
            "expect": (Expectation(outcome="resumed"),),
            "tolerates": "the control run has no fault",
            "waive": {},
            "breaks": (),
            "deadline_s": None,
        }
        control = self.model_copy(update=calm)
        return control.named(f"control-{self.control_key()}", self.path)

    def control_key(self) -> str:
        """Return a short name that scenarios share exactly when their control runs are alike."""
        shared = (
            "trainer",
            "engines",
            "transport",
            "packed",
            "draft",
            "timeouts",
            "seed",
            "pushes",
        )
        what = self.model_dump(include={*shared, "target", "target_options"}, mode="json")
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]
