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

from pydantic import Field, PrivateAttr

from harness.contracts import Json
from harness.draws import draw
from harness.fault_spec import FAULT_SPECS as FAULT_SPECS  # part of the language
from harness.fault_spec import FaultSpec as FaultSpec
from harness.scenario_values import (
    Bytes,
    Count,
    EachOf,
    EngineKinds,
    Generations,
    Index,
    IndexOrAll,
    Outcome,
    PerEngine,
    Profile,
    Reasons,
    Request,
    Restarted,
    Seconds,
    Section,
    Senders,
    SendLoops,
    Stall,
    Text,
    Transport,
    Versions,
)

INVARIANTS = {
    "ranks_agree": "the ranks that completed an agreement report the same outcome",
    "ended_in_time": "every process ended or answered inside the scenario's deadline",
    "serving_consistent": "label, checksum and trainer agree wherever an engine serves",
    "nothing_torn_served": "no token came from torn, dirty or unpublished weights",
    "outcome_table": "generation, label and bytes are what the outcome allows",
    "no_open_session": "no worker is left inside a weight update",
    "nothing_left_behind": "no process, port or shared memory is left",
    "bytes_counted_once": "every push that succeeds reports the bytes of one pass",
    "clean_push": "one more push without faults succeeds",
}

# The narrowest dimension of the tiny model that is split over ranks or workers.
MAX_SHARDS = 16
NUM_EXPERTS = 4  # of the mixture of experts
# A real server takes some 2 GB a worker, and its attention has two heads.
MAX_REAL_WORKERS = 2
MAX_REAL_ENGINES = 3


class Trainer(Section):
    """The trainer's ranks and how the model is split over them.

    Attributes:
        ranks: world size.
        pipeline_parallel: stages that hold the model's layers between them.
        expert_parallel: ranks that hold the experts between them, out of the data parallel ones;
            it divides 4. Above 1 the model is a mixture of experts.
        senders: which ranks send weights to the engines.
        send_loop: which trainer classes push the weights.
        tensor_parallel: ranks that hold the shards of a tensor between them; it divides 16. By
            default as many as the ranks of a stage allow. What remains is data parallel: replicas.
    """

    ranks: Annotated[int, Field(ge=1, le=256)] = 2
    pipeline_parallel: Count = 1
    expert_parallel: Count = 1
    senders: Senders = "one"
    send_loop: SendLoops = "auto"
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
        count: how many servers there are. Real ones: at most 3.
        workers: processes of one server that hold a shard each; it divides 16. Real ones: at most
            2.
        kind: what the servers are.
        profile: the session rules of fake ones.
    """

    count: Annotated[int, Field(ge=1, le=64)] = 1
    workers: Count = 1
    kind: EngineKinds = "fake"
    profile: Profile = "vllm-0.32"


class TimeoutLimits(Section):
    """The limits of waits, in seconds, as the target is given them.

    Attributes:
        init_s: limit of the request that builds the channel, and of the sender's part in it.
        request_s: limit of every other request.
        process_group_s: limit of collectives in the trainer's own groups. Peers wait in them while
            the sender waits for a request, so keep it above `request_s`.
        rendezvous_s: how long an engine's worker waits for the sender to open an NCCL channel. Keep
            it below `init_s`, so that its answer comes before the request ends.
    """

    init_s: Seconds = 10.0
    request_s: Seconds = 10.0
    process_group_s: Seconds = 30.0
    rendezvous_s: Seconds = 5.0


class Restart(Section):
    """Stop and start the trainer (all ranks) or one engine between two pushes.

    Attributes:
        what: who is restarted.
        engine: beside `what: engine`, its number from 0.
        before_push: the push that comes next. Engines restart after the connect that precedes it,
            if there is one, unless the trainer restarts too.
    """

    what: Restarted
    engine: Index | None = None
    before_push: Count


class StagedRequest(Section):
    """One request sent to engines before the trainer connects, to leave them in some state.

    Attributes:
        engine: who gets it: a number from 0, or all.
        request: what is sent.
    """

    engine: IndexOrAll = "all"
    request: Request


class Expectation(Section):
    """What must be true after one push. What is not given is not checked.

    Attributes:
        outcome: how the push ended on all ranks. A connect that fails is the outcome of the push
            that it comes before.
        attempts: complete sends within the push: 1, or 2 with the resend.
        connect_attempts: channels that the connect before the push built or tried to build.
        retries: requests of the push that were repeated in place.
        version: the label that the engines report, as text: one for all, or a list with one for
            each. Engines start with default; each push that succeeds counts on from there.
        generation: what the engines do: one word for all, or a list with one for each.
        bytes: what the target reports of the engines' weights: one word for all, or a list with one
            for each.
        error: part of the message, on every rank that raised.
        names_engine: the message of every rank that raised names this engine.
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


# What a run is made in, and not what happens in it. A folder's defaults may set it.
SETTING = (
    "trainer",
    "engines",
    "transport",
    "packed",
    "draft",
    "timeouts",
    "seed",
    "target",
    "target_options",
)


class Scenario(Section):
    """One scenario: a file, or one cell of its matrix.

    Attributes:
        proves: the sentence that a run shows to be true.
        source: address of the public report of the incident behind it.
        trainer: the ranks that push.
        engines: the servers that are pushed to.
        transport: how the tensors travel.
        packed: whether tensors travel packed into chunks, or each by itself.
        draft: whether a push carries a draft model too.
        timeouts: the limits that the target is given.
        seed: of everything random: the weights, what `random` draws, and the jitter of delays.
        pushes: how many pushes are made; by default one for each expectation.
        faults: what goes wrong.
        restarts: who is restarted between pushes.
        before_connect: requests that leave engines in some state before the trainer connects.
        target: the module under test, `package.module:factory`; by default the command line's.
        target_options: passed to the target as they are.
        expect: what must be true: one mapping that holds for every push, or a list with one for
            each.
        tolerates: why the faults are meant to make no difference to `expect`; without it, a
            scenario whose run without faults meets `expect` as well is `invalid`.
        waive: invariants that need not hold here, each with the reason.
        breaks: invariants that must turn out broken, and no others: for negative controls.
        only_as_written: engines that `--engines` must not move it to, each with the reason.
        deadline_s: limit of each connect and each push, in seconds. By default
            `10 + 2 x init_s + 8 x request_s`, and what slow faults take.
    """

    proves: Text
    source: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    trainer: Trainer = Trainer()
    engines: Engines = Engines()
    transport: Transport
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
    waive: Annotated[dict[str, Text], Reasons(INVARIANTS)] = Field(default_factory=dict)
    breaks: Annotated[tuple[str, ...], Field(strict=False), EachOf(INVARIANTS)] = ()  # a YAML list
    only_as_written: Annotated[
        dict[Literal["vllm", "vllm-next"], Text],
        Reasons({"vllm": "real engines", "vllm-next": "fakes under the rules vLLM moves to"}),
    ] = Field(default_factory=dict)
    deadline_s: Seconds | None = None

    _name: str = PrivateAttr(default="")
    _path: Path = PrivateAttr(default=Path())
    _drawn: Mapping[str, Json] = PrivateAttr(default_factory=dict)

    @property
    def name(self) -> str:
        """Stable id: the path under the scenarios' root without ``.yaml``, and the cell."""
        return self._name

    @property
    def path(self) -> Path:
        """The file it was read from."""
        return self._path

    @property
    def drawn(self) -> Mapping[str, Json]:
        """What ``random`` became: place in the file (``faults.0.engine``) -> the value drawn."""
        return self._drawn

    @property
    def num_pushes(self) -> int:
        return self.pushes

    @property
    def limit_s(self) -> float:
        """How long one command may take: its waits, each to its end, and time to compute."""
        if self.deadline_s is not None:
            return self.deadline_s
        slow_s = sum(fault.delay_s for fault in self.faults)
        return 10.0 + 2 * self.timeouts.init_s + 8 * self.timeouts.request_s + slow_s

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

    def decided(self) -> Scenario:
        """Return this scenario with everything that it leaves to chance drawn from its seed."""
        faults: list[FaultSpec] = []
        drawn: dict[str, Json] = {}
        for number, fault in enumerate(self.faults):
            one, values = draw(
                fault,
                number=number,
                seed=self.seed,
                ranks=self.trainer.ranks,
                engines=self.engines.count,
                workers=self.engines.workers,
                num_experts=NUM_EXPERTS if self.trainer.expert_parallel > 1 else 0,
            )
            faults.append(one)
            drawn |= {f"faults.{number}.{key}": value for key, value in values.items()}
        copy = self.model_copy(update={"faults": tuple(faults)})
        copy._drawn = drawn
        return copy

    def expectation(self, push: int) -> Expectation:
        """Return what push number ``push`` (from 1) must show."""
        assert 1 <= push <= self.pushes, f"push {push} of {self.pushes}"
        return self.expect[0] if len(self.expect) == 1 else self.expect[push - 1]

    def faults_for(self, role: Literal["engine", "rank"], index: int) -> list[dict[str, Json]]:
        """Return the faults addressed to one process, as `harness.injector` takes them.

        An engine is given those of its workers too. ``fault`` is the number in this scenario,
        ``seed`` that of what the kind draws each time it strikes.
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
                "seed": f"{self.seed}:faults.{number}:{role}.{index}",
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
        what = self.model_dump(include={*SETTING, "pushes"}, mode="json")
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]
