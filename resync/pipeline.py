"""Pipeline stages that send in turn, each the layers that it holds, inside one session.

A vLLM engine has one channel, which the next init replaces, so a stage opens its channel when its
turn comes. The turns are agreed steps: two stages that opened channels at the same time could reach
two engines in crossed order, and each would wait in one engine for the other.
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
        ValueError: ``senders`` does not begin with rank 0, or has no stage ``own``.
    """

    own: int
    senders: Sequence[int]

    def __post_init__(self) -> None:
        if not self.senders or self.senders[0] != 0:
            raise ValueError(
                f"senders: expected ranks that begin with 0, found {list(self.senders)}."
            )
        if not 0 <= self.own < len(self.senders):
            raise ValueError(
                f"own: expected a stage from 0 to {len(self.senders) - 1}, found {self.own}."
            )


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
