"""Several ranks that send: owners of engines, and pipeline stages that take turns in one session.

An owner does the sender's part of every step for its own engines. Pipeline stages share engines:
each sends the layers that it holds. A vLLM engine has one channel, which the next init replaces, so
a stage opens its channel when its turn comes. The turns are agreed steps: two stages that opened
channels at the same time could reach two engines in crossed order, and each would wait in one
engine for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from resync.agreement import Decision
from resync.steps import Steps


@dataclass(frozen=True, kw_only=True)
class PipelineStages:
    """Who sends what.

    Attributes:
        own: this rank's stage, from 0.
        senders: the rank that sends for each stage; the first is rank 0, which also controls the
            engines. The source of a rank yields the tensors of its own stage, and iterating it is
            a collective of that stage's ranks.

    Raises:
        ValueError: ``senders`` does not begin with rank 0 or repeats one, or has no stage ``own``.
    """

    own: int
    senders: Sequence[int]

    def __post_init__(self) -> None:
        if not self.senders or self.senders[0] != 0 or len(set(self.senders)) < len(self.senders):
            raise ValueError(
                f"senders: expected different ranks that begin with 0, found {list(self.senders)}."
            )
        if not 0 <= self.own < len(self.senders):
            raise ValueError(
                f"own: expected a stage from 0 to {len(self.senders) - 1}, found {self.own}."
            )

    def check_rank(self, rank: int) -> None:
        """Check that a rank that sends for a stage is in that stage.

        Raises:
            ValueError: it is in another one.
        """
        if rank in self.senders and self.own != (stage := list(self.senders).index(rank)):
            raise ValueError(
                f"own: expected stage {stage}, since rank {rank} sends for it, found {self.own}."
            )


def checked_owners(
    owners: Sequence[int] | None,
    *,
    num_engines: int,
    num_ranks: int,
    stages: PipelineStages | None,
    quarantines: bool,
) -> Sequence[int]:
    """Return for each engine the rank that sends to it; rank 0 where no owners are given.

    Raises:
        ValueError: not one rank of the trainer for each engine, or more ranks than the rest allows.
    """
    if owners is None:
        return [0] * num_engines
    if len(owners) != num_engines:
        raise ValueError(
            f"owners: expected one rank for each of {num_engines} engines, found {list(owners)}."
        )
    if not all(0 <= rank < num_ranks for rank in owners):
        raise ValueError(
            f"owners: expected ranks from 0 to {num_ranks - 1}, found {list(owners)}: nobody would "
            "send to some engines."
        )
    if stages is not None and any(owners):
        raise ValueError(
            f"owners: expected rank 0, which controls the engines for the stages, found "
            f"{list(owners)}."
        )
    if quarantines and len(set(owners)) > 1:
        raise ValueError(
            "on_stuck: expected raise, as several ranks send and none knows whether engines are "
            f"left to another, found quarantine with owners {list(owners)}."
        )
    return owners


def in_turn(stages: PipelineStages, steps: Steps, step: str, work: Callable[[], None]) -> Decision:
    """Run a step on the ranks of each stage, one stage after the other, up to the first failure.

    Each turn is agreed on by all ranks as ``<step>.<stage>``.
    """
    for stage in range(len(stages.senders)):
        decision = one_turn(stages, steps, f"{step}.{stage}", stage, work)
        if not decision.ok:
            break
    return decision


def one_turn(
    stages: PipelineStages, steps: Steps, step: str, stage: int, work: Callable[[], None]
) -> Decision:
    """Run one agreed step on the ranks of one stage."""
    return steps.on_every_rank(step, work if stage == stages.own else _wait)


def _wait() -> None:
    """What the ranks of the other stages do in a turn."""
