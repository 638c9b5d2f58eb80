"""Decides whether ranks that do not move can still move by themselves.

A first monitor: it proves a deadlock between ranks from what each of them is blocked in. A request
that an engine has not answered may yet be ended by its client's time-out, and a rank that is in no
collective may be in any code; both are left to the deadline. A full wait-for graph replaces
`find_deadlock` by the same signature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Members and purpose of the group, number of the collective in it, and its operation: ranks that
# are at the same number in different operations do not meet.
Key = tuple[tuple[int, ...], str, int, str]


@dataclass(frozen=True)
class Blocked:
    """What one rank is blocked in.

    Attributes:
        collectives: as ``fakes.megatron.evidence.pending_collectives`` gives them.
        tensor: the tensor that it is gathering, if it is.
        channel: whether it waits for its end of the data-plane channel.
    """

    collectives: Sequence[Mapping[str, Any]]
    tensor: str | None = None
    channel: bool = False

    def entered(self) -> set[Key]:
        """The collectives, named alike on every rank."""
        return {_key(collective) for collective in self.collectives}

    def waited_for(self) -> Key:
        """The collective that it entered last, which is the one that its thread is in."""
        return _key(self.collectives[-1])

    def sentence(self, *, plural: bool = False) -> str:
        """Say it in words, of one rank or of several."""
        verb = "are" if plural else "is"
        if not self.collectives:
            if self.channel:
                return f"wait{'' if plural else 's'} for the other end of the channel"
            return f"{verb} in no collective"
        collective = self.collectives[-1]
        label = collective["label"]
        group = "the default group" if label == "default_pg" else f"group {label}"
        if label == "undefined":
            group = f"the group of ranks {', '.join(map(str, collective['ranks']))}"
        what = f" (gather of {self.tensor})" if self.tensor else ""
        return f"{verb} in {collective['op']} #{collective['seq']} of {group}{what}"


def _key(collective: Mapping[str, Any]) -> Key:
    return tuple(collective["ranks"]), collective["label"], collective["seq"], collective["op"]


def find_deadlock(
    blocked: Mapping[int, Blocked], elsewhere: Mapping[int, str], *, num_open_requests: int
) -> str | None:
    """Return who waits for whom if nobody can move any more, else ``None``.

    Args:
        blocked: what each rank whose command has not ended is blocked in.
        elsewhere: the other ranks, and where they are: ``has returned``, ``has died``, ...
        num_open_requests: requests that engines have not answered. With one, its client's
            time-out, or its answer, may free a rank.
    """
    if num_open_requests or not blocked:
        return None
    waits: dict[int, list[int]] = {}
    for rank, at in blocked.items():
        if at.collectives:
            missing = [m for m in at.collectives[-1]["ranks"] if not _is_in(m, at, blocked)]
            if not missing:
                return None  # everybody is there: it is under way
            waits[rank] = missing
        elif not at.channel:
            return None
    return _sentence(blocked, elsewhere, waits)


def _is_in(rank: int, at: Blocked, blocked: Mapping[int, Blocked]) -> bool:
    return rank in blocked and at.waited_for() in blocked[rank].entered()


def _sentence(
    blocked: Mapping[int, Blocked], elsewhere: Mapping[int, str], waits: Mapping[int, list[int]]
) -> str:
    alike: dict[str, list[int]] = {}
    for rank, at in sorted(blocked.items()):
        alike.setdefault(at.sentence(), []).append(rank)
    parts = [
        f"{ranks_in_words(ranks)} {blocked[ranks[0]].sentence(plural=len(ranks) > 1)}"
        for ranks in alike.values()
    ]
    parts += [f"rank {rank} {where}" for rank, where in sorted(elsewhere.items())]
    missing = sorted({m for names in waits.values() for m in names})
    if not missing:
        return f"{'; '.join(parts)}; and no engine is receiving"
    return f"{'; '.join(parts)}; each waits for {ranks_in_words(missing)}, which will not come"


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 1-3`` or ``ranks 0, 2``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    ordered = sorted(ranks)
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"ranks {ordered[0]}-{ordered[-1]}"
    return f"ranks {', '.join(map(str, ordered))}"
