"""Send the model, and after an agreed failure send all of it once more.

An attempt is one complete send: for the target model, then for the draft model where there is one,
open a session on every engine, run one pass on every rank, close the sessions, and check that the
engines are still the ones that the push began with. A resend always repeats both models.
"""

from __future__ import annotations

import asyncio
from functools import partial

from resync.agreement import Decision
from resync.channel import Channel
from resync.client import WeightSyncClient
from resync.engine_control import EngineControl, Session
from resync.errors import Cause, EngineMismatch, FleetError, RankMustLeave, SendFailed
from resync.fleet import Action, Fleet
from resync.quarantine import set_aside
from resync.report import AttemptReport, Bytes, PushReport
from resync.senders import PipelineStages, one_turn
from resync.source import ResumableWeightSource
from resync.steps import Steps

MAX_ATTEMPTS = 2


class Sender:
    """What an attempt needs on one rank. ``fleet`` is ``None`` on ranks other than the sender."""

    def __init__(
        self,
        *,
        channel: Channel,
        client: WeightSyncClient,
        source: ResumableWeightSource,
        fleet: Fleet | None,
        has_draft: bool,
        quarantines: bool = False,
        stages: PipelineStages | None = None,
        dirty_label: str | None = None,
    ) -> None:
        self.channel = channel
        self.client = client
        self.source = source
        self.fleet = fleet
        self.has_draft = has_draft
        self.quarantines = quarantines
        self.stages = stages
        self.others_took_part = False  # in this attempt, stages of other ranks
        self.dirty_label = dirty_label

    def on_engines(self, action: Action) -> None:
        """Run an action on every engine; nothing on ranks other than the sender."""
        if self.fleet is not None:
            self.fleet.each(action)


def send_weights_with_resync(sender: Sender, steps: Steps, report: PushReport) -> tuple[Cause, ...]:
    """Send the weights on every rank; after an agreed failure, clean up and send them once more.

    Args:
        sender: this rank's parts.
        steps: runs and agrees on the steps.
        report: gets one entry an attempt.

    Returns:
        The causes of the last attempt's failure, the same on every rank; empty when the weights
        are committed on every engine. Sessions are closed either way, as far as engines answer.

    Raises:
        RankMustLeave: the source or the trainer engine raised on this rank, or an agreement failed.
    """
    causes: tuple[Cause, ...] = ()
    for number in range(1, MAX_ATTEMPTS + 1):
        attempt = AttemptReport(number)
        report.attempts.append(attempt)
        decision = _attempt(sender, steps, attempt, clean_up_first=number > 1)
        if decision.ok:
            if sender.fleet is not None:
                for engine in sender.fleet.active:
                    engine.bytes = Bytes.COMMITTED
            return ()
        causes = attempt.causes = decision.causes
        sender.channel.broken = True
    # Agreed on like every step, so that no rank begins another push while the sender still closes.
    # Its own failure is logged; the causes at hand matter more.
    steps.on_senders("close", lambda: _clean_up(sender))
    return causes


def _attempt(
    sender: Sender, steps: Steps, attempt: AttemptReport, *, clean_up_first: bool
) -> Decision:
    if clean_up_first:
        decision = steps.on_senders("clean_up", lambda: _clean_up(sender, accept_labels=True))
        if not decision.ok:
            return decision
        if sender.stages is None:
            decision = steps.on_every_rank("reconnect", sender.channel.open)
            if not decision.ok:
                return decision
    models = (False, True) if sender.has_draft else (False,)
    for draft in models:
        open_sessions = partial(_open_sessions, sender, draft=draft)
        decision = steps.on_senders("start", open_sessions)
        if not decision.ok:
            return decision
        if sender.stages is not None:
            return _send_in_turn(sender, sender.stages, steps, attempt)
        verify = draft == models[-1]
        transfer = partial(_transfer, sender, attempt, draft=draft, verify=verify)
        decision = steps.on_every_rank("transfer", transfer)
        if not decision.ok:
            return decision
    return decision


def _send_in_turn(
    sender: Sender, stages: PipelineStages, steps: Steps, attempt: AttemptReport
) -> Decision:
    """Have each stage open its channel and send, and close the sessions after the last."""
    transfer = partial(_transfer, sender, attempt, draft=False, verify=False)

    def reopen() -> None:
        # What other senders asked meanwhile has left replies that this rank does not know of.
        sender.client.forget_replies()
        sender.channel.open()

    for stage in range(len(stages.senders)):
        sender.others_took_part |= stage > 0
        decision = one_turn(stages, steps, f"reconnect.{stage}", stage, reopen)
        if decision.ok:
            decision = one_turn(stages, steps, f"transfer.{stage}", stage, transfer)
        if not decision.ok:
            return decision

    async def finish(engine: EngineControl) -> None:
        await engine.finish()
        await _verify(engine)

    return steps.on_senders("finish", lambda: sender.on_engines(finish))


def _clean_up(sender: Sender, *, accept_labels: bool = False) -> None:
    """Bring every engine back to: paused, no session open, no layer half loaded.

    One that cannot be brought there is quarantined, where the trainer wants that.

    Args:
        sender: this rank's parts.
        accept_labels: take an unexpected label, of an engine that was restarted during the push,
            for the one before it: the resend goes to that engine too, over a channel that it joins.
    """

    async def clean(engine: EngineControl) -> None:
        if sender.others_took_part:
            engine.doubt()
        # Closing commits what was loaded: never on a running engine.
        _, label = await asyncio.gather(engine.pause(), engine.version())
        if accept_labels and label not in engine.expected_labels:
            engine.session = Session.UNKNOWN
            engine.replies.forget()
            engine.expected_labels = frozenset({label})
        await engine.close_session(has_draft=sender.has_draft)

    try:
        sender.on_engines(clean)
    except FleetError as error:
        if sender.fleet is None or not sender.quarantines:
            raise
        # Whatever the reason, it cannot be given weights.
        set_aside(sender.fleet, error.failures)


def _open_sessions(sender: Sender, *, draft: bool) -> None:
    sender.others_took_part = False

    async def open_one(engine: EngineControl) -> None:
        await engine.require_paused("start")
        await engine.close_session(has_draft=sender.has_draft)
        await engine.replies.require_room("start")
        if sender.dirty_label is not None and not draft:
            engine.expected_labels |= {sender.dirty_label}  # shown too where the answer is lost
            await engine.publish(sender.dirty_label)
        await engine.start(draft=draft)

    sender.on_engines(open_one)


def _transfer(sender: Sender, attempt: AttemptReport, *, draft: bool, verify: bool) -> None:
    """Run one pass on this rank; on the sender, check the engines after the last one."""
    sender.source.draft = sender.client.draft = draft
    sender.source.begin_pass()
    sender.client.begin_session()
    try:
        sender.channel.send()
    except RankMustLeave:
        raise
    except Exception as error:
        if sender.client.latches:
            before = sender.client.failure
            raise SendFailed(
                f"the trainer engine raised between collectives of all ranks: {error!r}"
                + (f"; and before that: {before}" if before is not None else "")
            ) from error
        sender.client.give_up(error)
        sender.source.finish_pass()  # the other ranks are in its gathers, or will be
        failure = sender.client.failure
        if failure is not None and failure is not error:
            raise failure from error  # what a channel that was dropped raises says less
        raise
    finally:
        attempt.bytes_sent += sender.source.bytes_yielded
        sender.source.draft = sender.client.draft = False
    if sender.client.failure is not None:
        raise sender.client.failure
    sender.client.require_update()
    if verify:
        sender.on_engines(_verify)


async def _verify(engine: EngineControl) -> None:
    """Check that the engine is the one that the push began with, and that its replies are its own.

    Raises:
        EngineMismatch: its label is neither the one it had nor ours, or it generates: it was
            restarted, or somebody else writes to it; or its workers' replies are shifted.
    """
    if engine.session is not Session.CLOSED:
        raise EngineMismatch(
            engine.index,
            "verify",
            "expected its session to be finished, found it open: the trainer engine of the rank "
            "that sends to it made no finish",
        )
    _, (paused, label) = await asyncio.gather(engine.probe(), engine.look())
    if not paused:
        # A restarted engine shows the label of a new engine, which before the first push is the
        # expected one too: only that it generates gives it away.
        raise engine.found_running("verify")
    if label not in engine.expected_labels:
        engine.session = Session.UNKNOWN
        expected = " or ".join(sorted(engine.expected_labels))
        raise EngineMismatch(
            engine.index,
            "verify",
            f"expected weight version {expected}, found {label}: the engine was restarted or "
            "another trainer writes to it",
        )
