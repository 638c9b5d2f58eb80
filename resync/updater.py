"""The updater: one object on every trainer rank that connects, pushes, reconnects and closes.

A push, on every rank, in agreed steps (A = all ranks agree on the outcome):

    quiesce   the sender: pause and flush every engine                              A
    attempt   the sender: start on every engine                                     A
              every rank: one pass; the sender: update, finish; then the draft's    A
    commit    the sender: publish the version, read it back                         A
    resume    the sender: resume every engine                                       A

A failure anywhere in an attempt: every engine is cleaned up, the channel is rebuilt on a fresh
port, and the whole model is sent once more. A second failure raises on every rank, with generation
paused and the version unchanged.

The sender is rank 0. Where each engine has a rank of its own that sends to it (expert routing: the
leader of the engine's slot), each of them does the sender's part for its engines, in the same
steps. Where pipeline stages send in turn, rank 0 controls the engines and each stage's sender opens
its channel and sends its layers when its turn comes (``resync/senders.py``).
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch.distributed as dist

from resync.agreement import Agreement, Code, Decision
from resync.channel import Channel, OpenChannel
from resync.client import WeightSyncClient
from resync.engine_control import EngineControl
from resync.errors import (
    Cause,
    ConnectFailed,
    PeerLost,
    PushFailed,
    RankMustLeave,
    ResyncError,
    UpdaterUnusable,
    describe,
)
from resync.fleet import Fleet
from resync.generation import pause_again, publish, quiesce, restore, resume
from resync.observer import Observer, unobserved
from resync.policy import policy_for
from resync.quarantine import ON_STUCK
from resync.report import PushReport
from resync.resend import MAX_ATTEMPTS, Sender, send_weights_with_resync
from resync.senders import PipelineStages, checked_owners, in_turn
from resync.source import ResumableWeightSource, WeightSource
from resync.steps import Steps
from resync.timeouts import PushTimeouts, check_group_timeouts, default_group_timeouts

logger = logging.getLogger("resync")

CONNECT_ATTEMPTS = 2
MakeFleet = Callable[[Mapping[int, str], PushTimeouts, Observer], Fleet]


def _http_fleet(urls: Mapping[int, str], timeouts: PushTimeouts, observe: Observer) -> Fleet:
    return Fleet(urls, timeouts, observe=observe)


class WeightUpdater:
    """Pushes a trainer's weights to inference engines. Every method is a collective of all ranks.

    Args:
        open_channel: builds a trainer engine of vLLM's shape from a client and a weight source, on
            every rank; each call must use a fresh port (vLLM's ``trainer_init``, behind a port that
            rank 0 picks and broadcasts).
        source: the weight source; iterating it is a collective of all ranks.
        transport: ``nccl`` (separate GPUs) or ``ipc`` (shared GPUs).
        timeouts: the limits of a push.
        draft: the push carries a draft model too; ``source.draft`` selects it.
        start_version: what the trainer counts as published before its first push.
        mark_dirty: while an engine's bytes are not known to be complete, its label says
            ``updating:<version>``, also after a push that raised.
        trainer_groups: name -> time-out in seconds of the process groups that a pass runs
            collectives on; the default group where not given.
        strict: raise where one of them expires before a request does, instead of warning.
        on_stuck: what becomes of an engine that no push can bring back (stuck, dead, in need of a
            restart): ``raise``, or ``quarantine`` it and go on with the others.
        stages: who sends which pipeline stage, where each sends its own; by default one rank sends
            everything.
        observe: hears each step of this rank.
        make_fleet: replaces HTTP, for tests.

    Raises:
        ValueError: unknown transport or ``on_stuck``, or ``draft`` with a source that has no such
            flag; ``stages`` with a transport, a draft or an ``on_stuck`` that they do not go with.
        TimeoutOrderError: ``strict``, and a process group is too short.
    """

    def __init__(
        self,
        *,
        open_channel: OpenChannel,
        source: WeightSource,
        transport: str,
        timeouts: PushTimeouts | None = None,
        draft: bool = False,
        start_version: int = 0,
        mark_dirty: bool = False,
        trainer_groups: Mapping[str, float] | None = None,
        strict: bool = False,
        on_stuck: str = "raise",
        stages: PipelineStages | None = None,
        observe: Observer = unobserved,
        make_fleet: MakeFleet = _http_fleet,
    ) -> None:
        if draft and not hasattr(source, "draft"):
            raise ValueError(
                "source: expected a weight source with a `draft` flag, as the push carries a draft "
                f"model too, found none on {type(source).__name__}: both sessions would get the "
                "target's weights."
            )
        if on_stuck not in ON_STUCK:
            raise ValueError(
                f"on_stuck: expected one of {', '.join(ON_STUCK)}, found {on_stuck!r}."
            )
        self.policy = policy_for(transport)
        if stages is not None and (draft or on_stuck != "raise" or not self.policy.coupled):
            raise ValueError(
                "stages: expected transport nccl, no draft and on_stuck raise, as stages that send "
                f"in turn go with no others, found {transport}, draft {draft} and {on_stuck}."
            )
        self.weight_version = start_version
        self.timeouts = timeouts or PushTimeouts()
        self.source = ResumableWeightSource(source, observe=observe)
        groups = default_group_timeouts() if trainer_groups is None else trainer_groups
        check_group_timeouts(self.timeouts, groups, strict=strict)
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._open_channel = open_channel
        self._has_draft = draft
        self._mark_dirty = mark_dirty
        self._quarantines = on_stuck == "quarantine"
        self._observe = observe
        self._make_fleet = make_fleet
        self._stages = stages
        if stages is not None:
            stages.check_rank(self._rank)
        self._fleet: Fleet | None = None  # of the engines that this rank controls
        self._sending: Fleet | None = None  # of those that it sends to only
        self._channel: Channel | None = None
        self._client: WeightSyncClient | None = None
        self._sends = False
        self._agreement: Agreement | None = None
        self._lost: ResyncError | None = None

    # ---- connecting ----

    def connect(self, engines: Sequence[str], owners: Sequence[int] | None = None) -> int:
        """Connect to the engines and open the channel; once more on a fresh port if that failed.

        An engine that an earlier trainer left in the middle of a session is found by its first
        push, which closes the session before it starts its own.

        Args:
            engines: one ``http://host:port`` an engine, the same on every rank.
            owners: for each engine the rank that sends to it, the same on every rank; rank 0 by
                default.

        Returns:
            How many channels were built: 1, or 2.

        Raises:
            ConnectFailed: on every rank, with the same causes; generation is untouched.
            PeerLost: a rank was lost.
            ValueError: not one owner for each engine, or several where engines are quarantined.
        """
        self._require_peers()
        owners = checked_owners(
            owners,
            num_engines=len(engines),
            num_ranks=dist.get_world_size() if dist.is_initialized() else 1,
            stages=self._stages,
            quarantines=self._quarantines,
        )
        if self._agreement is not None:
            raise UpdaterUnusable("expected an updater that is not connected; call close() first.")
        self._agreement = Agreement(timeout_s=self.timeouts.agreement_s, observe=self._observe)
        try:
            return self._connect(engines, owners)
        except PeerLost as error:
            self._lost = error
            raise
        except BaseException:
            self.close()
            raise

    def _connect(self, engines: Sequence[str], owners: Sequence[int]) -> int:
        assert self._agreement is not None
        given = "\n".join(f"{owner} {url}" for owner, url in zip(owners, engines, strict=True))
        # Ranks that differ in these would run different steps.
        given += f"\n{self._has_draft} {self._stages and list(self._stages.senders)}"
        if not self._agreement.same_everywhere(zlib.crc32(given.encode())):
            raise ConnectFailed(
                "expected the same engines on every trainer rank, found different lists; this rank "
                f"has {list(engines)}, sent to by ranks {list(owners)}. Take one snapshot of the "
                "engines and give it to all ranks. No engine was touched.",
                (),
            )
        own = {i: url for i, url in enumerate(engines) if owners[i] == self._rank}
        self._sends = bool(own)
        sent = {}
        if self._stages is not None and self._rank in self._stages.senders[1:]:
            sent = dict(enumerate(engines))
        steps = self._steps(PushReport(version="connect"))
        decision = steps.on_every_rank("look", partial(self._look, own, sent))
        self._client = WeightSyncClient(self._fleet or self._sending, self.policy)
        self._client.leaves_open = self._stages is not None
        self._channel = Channel(
            self._open_channel, self._client, self.source, self.timeouts, observe=self._observe
        )
        builds = 0
        while decision.ok and builds < CONNECT_ATTEMPTS:
            builds += 1
            opened = self._open(steps)
            if opened.ok:
                return builds
            decision = opened
            if builds < CONNECT_ATTEMPTS:
                decision = steps.on_every_rank("come_to_rest", self._come_to_rest)
        raise ConnectFailed(
            f"connecting to {len(engines)} engines failed after {builds} channels: "
            f"{describe(decision.causes)}",
            decision.causes,
            attempts=builds,
        )

    def _open(self, steps: Steps) -> Decision:
        assert self._channel is not None
        if self._stages is None:
            return steps.on_every_rank("connect", self._channel.open)
        return in_turn(self._stages, steps, "connect", self._channel.open)

    def _steps(self, report: PushReport) -> Steps:
        assert self._agreement is not None
        return Steps(self._agreement, rank=self._rank, sends=self._sends, report=report)

    def _look(self, engines: Mapping[int, str], sent: Mapping[int, str]) -> None:
        """Read each engine's size and label, and take that label for the one before the push.

        Args:
            engines: those that this rank controls.
            sent: those that it sends to only.
        """
        if sent:
            self._sending = self._make_fleet(sent, self.timeouts, self._observe)
            self._sending.each(EngineControl.world_size)
        if not engines:
            return
        self._fleet = self._make_fleet(engines, self.timeouts, self._observe)

        async def look(engine: EngineControl) -> None:
            _, (paused, label) = await asyncio.gather(engine.world_size(), engine.look())
            engine.expected_labels = frozenset({label})
            engine.session = engine.session_found(paused=paused)
            await engine.replies.require_room("connect")

        self._fleet.each(look)

    def _come_to_rest(self) -> None:
        """Wait for an init that was not answered: another one must not queue behind it."""

        async def rest(engine: EngineControl) -> None:
            await engine.line.until_idle("init")

        for fleet in (self._fleet, self._sending):
            if fleet is not None:
                fleet.each(rest)

    # ---- pushing ----

    def push(self) -> PushReport:
        """Take every engine from version v to v+1 with the weights that the source yields now.

        Returns:
            What happened; the version is published and generation is running.

        Raises:
            PushFailed: on every rank, with the same causes. ``weight_version`` has advanced only
                where every engine shows the new version.
            RankMustLeave: the weight source or the trainer engine raised on this rank
                (`SourceFailed`, `SendFailed`), or a rank was lost (`PeerLost`): leave the job.
        """
        self._require_peers()
        if self._agreement is None or self._channel is None or self._client is None:
            raise UpdaterUnusable("expected a connected updater; call connect() first.")
        report = PushReport(version=str(self.weight_version + 1))
        steps = self._steps(report)
        sender = Sender(
            channel=self._channel,
            client=self._client,
            source=self.source,
            fleet=self._fleet,
            has_draft=self._has_draft,
            quarantines=self._quarantines,
            stages=self._stages,
            dirty_label=f"updating:{report.version}" if self._mark_dirty else None,
        )
        try:
            self._push(sender, steps, report)
        except RankMustLeave as error:
            self._lost, error.report = error, report
            raise
        finally:
            if self._fleet is not None:
                report.engines = self._fleet.reports()
        return report

    def _push(self, sender: Sender, steps: Steps, report: PushReport) -> None:
        fleet = sender.fleet

        def quiesce_all() -> Code:
            try:
                if fleet is not None:
                    quiesce(fleet, quarantines=self._quarantines)
            finally:
                if fleet is not None and fleet.must_rejoin:
                    # Until an open has succeeded, whatever becomes of this push.
                    sender.channel.broken, fleet.must_rejoin = True, False
            if self._stages is not None:
                return Code.OK  # every turn opens its channel
            return Code.RECONNECT if sender.channel.needs_rebuild else Code.OK

        decision = steps.on_every_rank("quiesce", quiesce_all)
        what = "quiescing"
        if decision.code is Code.RECONNECT:
            what = "reconnecting"
            decision = steps.on_every_rank("reconnect", sender.channel.open)
        if not decision.ok:
            restored = steps.on_senders("restore", lambda: restore(fleet) if fleet else None)
            self._fail(report, what, (*decision.causes, *restored.causes))
        if send_weights_with_resync(sender, steps, report):
            causes = [cause for attempt in report.attempts for cause in attempt.causes]
            self._fail(report, f"sending, {MAX_ATTEMPTS} attempts", causes)
        decision = steps.on_senders(
            "commit", lambda: publish(fleet, report.version, report) if fleet else None
        )
        if not decision.ok:
            self._fail(report, "publishing the version", decision.causes)
        self.weight_version += 1
        decision = steps.on_senders("resume", lambda: resume(fleet, report) if fleet else None)
        if not decision.ok:
            paused = steps.on_senders("pause_again", lambda: pause_again(fleet) if fleet else None)
            self._fail(report, "resuming", (*decision.causes, *paused.causes))
        report.degraded = decision.code is Code.DEGRADED

    def _fail(self, report: PushReport, what: str, causes: Sequence[Cause]) -> None:
        if self._fleet is not None:
            report.engines = self._fleet.reports()
            for e in report.engines:
                logger.error(
                    "push %s failed (%s): engine %d holds %s bytes, shows label %s, paused: %s",
                    report.version, what, e.index, e.bytes, e.label, e.paused,
                )  # fmt: skip
        raise PushFailed(
            f"push of version {report.version} failed ({what}): {describe(causes)}", causes, report
        )

    def _require_peers(self) -> None:
        if self._lost is not None:
            raise UpdaterUnusable(f"this updater lost a peer and touches no engine: {self._lost}")

    # ---- the end ----

    def reconnect(self, engines: Sequence[str], owners: Sequence[int] | None = None) -> int:
        """Close and connect again, to other engines or after a `ConnectFailed`."""
        self.close()
        return self.connect(engines, owners)

    def close(self) -> None:
        """Drop the channel and the connections. Touches no engine; a second call does nothing."""
        channel, self._channel = self._channel, None
        fleets = (self._fleet, self._sending)
        self._fleet = self._sending = None
        agreement, self._agreement = self._agreement, None
        self._client = None
        if channel is not None:
            channel.close()
        for fleet in fleets:
            if fleet is not None:
                fleet.close()
        if agreement is not None:
            agreement.close()
