"""A whole trainer in one process: ranks as threads, scripted engines, vLLM-shaped doubles."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from fake_vllm import FakeEngine, FakeTransport, Strike
from httpx_wire import HttpxWire
from thread_group import ThreadAgreement, ThreadGroup
from trainer_doubles import TRAINERS, Source, TrainerDouble, nothing

from resync import (
    Fleet,
    Observer,
    PushReport,
    PushTimeouts,
    RankMustLeave,
    ResumableWeightSource,
    TrainerEngine,
    WeightSyncClient,
    WeightUpdater,
)
from resync.timeouts import MAX_IDLE_WAITS_BETWEEN_AGREEMENTS, MAX_REQUESTS_BETWEEN_AGREEMENTS

MakeWorld = Callable[..., "World"]  # the fixture `make_world`
IN_A_WAIT_OF_ITS_OWN = ("metrics", "idle", "no_op")  # or under the limit of an operation
QUICK = PushTimeouts(init_s=5, request_s=5, settle_s=0.2)


class _RankOfThread(threading.local):
    """Stands in for ``torch.distributed`` in the updater: each thread is a rank."""

    rank = 0
    size = 1

    def is_initialized(self) -> bool:
        return True

    def get_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.size


@dataclass
class World:
    """``ranks`` updaters that push to ``engines`` scripted engines.

    Attributes:
        channels: every trainer engine that was built, by rank.
        on_open: called on a rank before it builds its n-th (from 0) channel: ``(rank, n)``.
        on_observe: called with ``(rank, step, phase)`` at each step; what it raises, strikes.
        limits: ``(engine, action, limit_s)`` of every request, as the observer hears it.
        most_requests: the longest run of requests to one engine between two agreements.
        most_idle_waits: the same of waits for it to come to rest.
    """

    ranks: int = 2
    engines: int = 1
    transport: str = "ipc"
    rules: str = "vllm-0.32"
    workers: Sequence[int] = ()
    strikes: Sequence[Strike] = ()
    timeouts: PushTimeouts = QUICK
    options: dict[str, Any] = field(default_factory=dict)  # of the updater
    trainer: dict[str, Any] = field(default_factory=dict)  # of the trainer doubles
    rendezvous: Callable[[], None] = nothing
    channels: list[list[TrainerDouble]] = field(default_factory=list)
    on_open: Callable[[int, int], None] = lambda rank, nth: None
    on_observe: Callable[[int, str, str], None] = lambda rank, step, phase: None
    limits: list[tuple[int, str, float]] = field(default_factory=list)
    steps_heard: list[str] = field(default_factory=list)
    most_requests: int = 0
    most_idle_waits: int = 0

    def start(self, patch: pytest.MonkeyPatch) -> World:
        """Build one updater a rank."""
        workers = self.workers or [1] * self.engines
        self.fakes = [FakeEngine(i, self.rules, workers[i]) for i in range(self.engines)]
        self.wire = FakeTransport(self.fakes, self.strikes)
        self.urls = self.wire.urls
        self.group = ThreadGroup(self.ranks)
        self.sources = [Source(self.group, rank) for rank in range(self.ranks)]
        self.channels = [[] for _ in range(self.ranks)]
        self.agreements: list[ThreadAgreement] = []
        self._of_thread = _RankOfThread()
        self._since_agreement: Counter[int] = Counter()
        self._idle_since_agreement: Counter[int] = Counter()
        self._builds = [0] * self.ranks
        patch.setattr("resync.updater.dist", self._of_thread)
        patch.setattr("resync.updater.Agreement", self._agreement)
        self.updaters = self.run(self._updater)
        return self

    def _updater(self, rank: int) -> WeightUpdater:
        def open_channel(client: WeightSyncClient, source: ResumableWeightSource) -> TrainerEngine:
            return self._open(rank, client, source)

        return WeightUpdater(
            open_channel=open_channel,
            source=self.sources[rank],
            transport=self.transport,
            timeouts=self.timeouts,
            observe=self._observer(rank),
            make_fleet=self._fleet,
            **self.options,
        )

    def _agreement(self, *, timeout_s: float, observe: Observer) -> ThreadAgreement:
        assert timeout_s == self.timeouts.agreement_s
        agreement = ThreadAgreement(self.group, self._of_thread.rank, observe)
        self.agreements.append(agreement)
        return agreement

    def _fleet(self, urls: Mapping[int, str], timeouts: PushTimeouts, observe: Observer) -> Fleet:
        return Fleet(urls, timeouts, observe=observe, wire=HttpxWire(self.wire))

    def _open(
        self, rank: int, client: WeightSyncClient, source: ResumableWeightSource
    ) -> TrainerEngine:
        nth, self._builds[rank] = self._builds[rank], self._builds[rank] + 1
        self.on_open(rank, nth)
        options = dict(self.trainer)
        options["blocks"] = options.get("blocks", False) and nth == 0
        make: type[TrainerDouble] = TRAINERS[self.transport]
        double = make(client, source, self.group, rank, rendezvous=self.rendezvous, **options)
        double.open()
        self.channels[rank].append(double)
        return double

    def _observer(self, rank: int) -> Observer:
        def observe(step: str, /, **details: Any) -> None:
            phase = details.get("phase", "")
            if rank == 0 and step.startswith("agree.") and phase == "end":
                self._since_agreement.clear()
                self.steps_heard.append(step.removeprefix("agree."))
                self._idle_since_agreement.clear()
            if step == "idle" and phase == "begin":
                self._idle_since_agreement[details["engine"]] += 1
                self.most_idle_waits = max(
                    self.most_idle_waits, *self._idle_since_agreement.values()
                )
            if step == "request" and phase == "begin":
                self.limits.append((details["engine"], details["action"], details["limit_s"]))
                if details["action"] in IN_A_WAIT_OF_ITS_OWN:
                    return
                self._since_agreement[details["engine"]] += 1
                self.most_requests = max(self.most_requests, *self._since_agreement.values())
            self.on_observe(rank, step, phase)

        return observe

    # ---- what all ranks do together ----

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """Run ``work(rank)`` on every rank; return its result or its exception, by rank.

        A rank that leaves the job ends the group, as the death of its process does.
        """
        outcomes: list[Any] = [None] * self.ranks

        def one(rank: int) -> None:
            self._of_thread.rank, self._of_thread.size = rank, self.ranks
            try:
                outcomes[rank] = work(rank)
            except Exception as error:
                outcomes[rank] = error
                if isinstance(error, RankMustLeave):
                    self.group.leave()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive(), "a rank hangs"
        return outcomes

    def connect(self) -> list[Any]:
        """Connect every rank to all engines."""
        return self.run(lambda rank: self.updaters[rank].connect(self.urls))

    def push(self) -> list[Any]:
        """Push the weights of the trainer's next step."""
        for source in self.sources:
            source.step += 1
        return self.run(lambda rank: self.updaters[rank].push())

    def connected(self) -> World:
        """Connect, which must work."""
        assert self.connect() == [1] * self.ranks
        return self

    def pushed(self) -> list[PushReport]:
        """Push, which must work."""
        outcomes = self.push()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return outcomes

    def close(self) -> None:
        """Close, and check what must hold after anything that can happen to a push."""
        self.run(lambda rank: self.updaters[rank].close())
        assert [engine.violations for engine in self.fakes] == [[]] * self.engines
        assert self.most_requests <= MAX_REQUESTS_BETWEEN_AGREEMENTS
        assert self.most_idle_waits <= MAX_IDLE_WAITS_BETWEEN_AGREEMENTS
        assert len({tuple(agreement.steps) for agreement in self.agreements[-self.ranks :]}) <= 1
        assert all(source.draft is False for source in self.sources)

    # ---- what they look at ----

    @property
    def versions(self) -> list[int]:
        """What each rank counts as published."""
        return [updater.weight_version for updater in self.updaters]

    @property
    def labels(self) -> list[str]:
        """What each engine shows."""
        return [engine.label for engine in self.fakes]

    @property
    def paused(self) -> list[bool]:
        """Whether each engine's generation is paused."""
        return [engine.paused for engine in self.fakes]

    @property
    def weights(self) -> list[str]:
        """What the target model of each engine holds."""
        return [engine.models[False].weights for engine in self.fakes]

    def heal(self) -> None:
        """No more failures."""
        self.wire.strikes.clear()
