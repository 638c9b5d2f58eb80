"""What must hold after every scenario, whatever it expects. A new one is a function and a line.

Each returns sentences, one for each way in which it does not hold. Names and meanings are those of
``harness.scenario.INVARIANTS``, which a scenario may waive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.observation import UNKNOWN_WEIGHTS, EngineSeen, PushSeen, RunSeen
from harness.scenario import Scenario
from harness.verdicts.expectations import generation
from harness.verdicts.serving import WeightsOf, wrongly_served


@dataclass(frozen=True)
class Evidence:
    """What an invariant judges."""

    scenario: Scenario
    run: RunSeen
    weights: WeightsOf

    @property
    def all_pushes(self) -> list[PushSeen]:
        """The scenario's pushes and the closing one."""
        closing = [] if self.run.closing is None else [self.run.closing]
        return [*self.run.pushes, *closing]


def ranks_agree(evidence: Evidence) -> list[str]:
    """Every rank that survived ended alike, and errors that carry agreed causes carry the same."""
    broken = []
    for push in evidence.all_pushes:
        if push.halted is not None:
            continue
        endings = {rank: seen.ending for rank, seen in push.ranks.items() if not seen.struck}
        if len(set(endings.values())) > 1:
            broken.append(f"push {push.number}: the ranks ended differently: {endings}")
        causes = {seen.causes for seen in push.survivors if seen.causes}
        if len(causes) > 1:
            broken.append(f"push {push.number}: the ranks raised different causes: {causes}")
    return broken


def ended_in_time(evidence: Evidence) -> list[str]:
    """No rank was waited for in vain, and none died of anything but the scenario's faults."""
    broken = []
    for push in evidence.all_pushes:
        if push.halted is not None and push.halted.kind == "overran":
            broken.append(f"push {push.number}: {push.halted.sentence}")
        broken += [
            f"push {push.number}: rank {rank} {seen.error}"
            for rank, seen in push.ranks.items()
            if seen.ending == "died" and not seen.struck
        ]
    return broken


def serving_consistent(evidence: Evidence) -> list[str]:
    """Where an engine serves after a push, label, checksums and trainer say the same version."""
    broken = []
    holds: dict[int, int] = {}  # process -> the push whose weights it must serve; 0 at its start
    for push in evidence.all_pushes:
        for engine in push.after:
            if push.outcome == "resumed" or (
                push.outcome == "degraded" and engine.index not in push.quarantined
            ):
                holds[engine.process] = push.number
            if engine.paused is False and not engine.stuck:
                broken += _inconsistent(evidence, push, engine, holds.get(engine.process, 0))
    return broken


def _inconsistent(evidence: Evidence, push: PushSeen, engine: EngineSeen, step: int) -> list[str]:
    where = f"after push {push.number}, engine {engine.index} serves"
    found = evidence.weights.name(engine.fingerprint)
    broken = []
    if engine.fingerprint != evidence.weights.step(step):
        broken.append(f"{where} {found} weights, expected {_name(step)}")
    if evidence.scenario.draft and engine.draft_fingerprint != evidence.weights.step(
        step, draft=True
    ):
        broken.append(f"{where} draft weights that are not {_name(step)}")
    if engine.serves is False:
        broken.append(
            f"after push {push.number}, engine {engine.index} is running, and answers none"
        )
    published = push.outcome in ("resumed", "degraded") and engine.index not in push.quarantined
    if published and engine.label != push.version:
        broken.append(f"{where} under label {engine.label!r}, the trainer counts {push.version!r}")
    return broken


def _name(step: int) -> str:
    return f"those of push {step}" if step else "those it started with"


def nothing_torn_served(evidence: Evidence) -> list[str]:
    """No token came from torn, dirty or unpublished weights."""
    return wrongly_served(evidence.run.events, evidence.weights)


def outcome_table(evidence: Evidence) -> list[str]:
    """Generation is what the outcome allows: running after a push that succeeded, but for engines
    that it quarantined, which do not run; after one that raised, paused everywhere, or as it was if
    nothing was written."""
    broken = []
    for push in evidence.all_pushes:
        # A frozen engine does not say, and serves nobody.
        living = [engine for engine in push.after if engine.alive and engine.paused is not None]
        paused = {engine.index: engine.paused for engine in living}
        states = {engine.index: generation(engine) for engine in push.after}
        if push.outcome == "resumed" and set(states.values()) - {"running"}:
            broken.append(f"push {push.number} resumed, but not every engine runs: {states}")
        if push.outcome == "degraded":
            running = {index for index, state in states.items() if state == "running"}
            if not (running and push.quarantined) or running != set(states) - push.quarantined:
                broken.append(
                    f"push {push.number} is degraded, and expected every engine to run but for "
                    f"those quarantined ({sorted(push.quarantined) or 'none'}); found {states}"
                )
        if push.outcome == "raised" and not all(paused.values()):
            before = {engine.index: engine for engine in push.before}
            changed = [e.index for e in living if not _as_before(e, before.get(e.index))]
            if changed:
                broken.append(
                    f"push {push.number} raised, and expected generation paused everywhere, or "
                    f"running as before with unchanged weights; found paused: {paused}, changed: "
                    f"engines {changed}"
                )
    return broken


def _as_before(engine: EngineSeen, before: EngineSeen | None) -> bool:
    if before is None or before.process != engine.process:
        return True  # it was started during the push, and is as new
    weights = {engine.fingerprint, before.fingerprint} - {UNKNOWN_WEIGHTS}
    same = (engine.paused, engine.label) == (before.paused, before.label)
    return same and len(weights) <= 1


def no_open_session(evidence: Evidence) -> list[str]:
    """After a push that every rank ended, no living engine's worker is inside a weight update.

    A rank that was lost cannot close sessions; the next trainer's first push does, and is checked.
    """
    return [
        f"after push {push.number}, engine {engine.index} has sessions open: {engine.sessions}"
        for push in evidence.all_pushes
        if push.halted is None
        and not any(rank.struck or rank.leaves for rank in push.ranks.values())
        for engine in push.after
        if engine.alive and not engine.stuck and any(engine.sessions)
        if engine.index not in push.quarantined
    ]


def nothing_left_behind(evidence: Evidence) -> list[str]:
    """No process, port or shared memory is left; the latter not even between two pushes.

    A rank that was lost, or waits for ever, cannot release its memory.
    """
    held = [
        f"after push {push.number}, {push.exported} pieces of shared memory were not released"
        for push in evidence.all_pushes
        if push.exported and push.halted is None and not _lost_a_rank(push)
    ]
    return [*held, *evidence.run.leftovers]


def _lost_a_rank(push: PushSeen) -> bool:
    return any(rank.struck or rank.leaves or rank.ending == "died" for rank in push.ranks.values())


def bytes_counted_once(evidence: Evidence) -> list[str]:
    """Every push that succeeded reports the same bytes for its last attempt: those of one pass."""
    sent = {
        push.number: push.report()["bytes_sent"][-1]
        for push in evidence.all_pushes
        if push.outcome == "resumed" and push.report().get("bytes_sent")
    }
    if len(set(sent.values())) <= 1:
        return []
    return [f"pushes of one model report different bytes, by push: {sent}"]


def clean_push(evidence: Evidence) -> list[str]:
    """One more push without faults succeeded on every engine."""
    closing = evidence.run.closing
    if closing is None or closing.outcome == "resumed":
        return []
    errors = sorted({rank.error for rank in closing.ranks.values() if rank.error})
    why = "; ".join([*([closing.halted.sentence] if closing.halted is not None else ()), *errors])
    return [f"the closing push: expected resumed, found {closing.outcome}: {why}"]


CHECKS: dict[str, Callable[[Evidence], list[str]]] = {
    "ranks_agree": ranks_agree,
    "ended_in_time": ended_in_time,
    "serving_consistent": serving_consistent,
    "nothing_torn_served": nothing_torn_served,
    "outcome_table": outcome_table,
    "no_open_session": no_open_session,
    "nothing_left_behind": nothing_left_behind,
    "bytes_counted_once": bytes_counted_once,
    "clean_push": clean_push,
}
