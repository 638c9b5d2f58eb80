"""How the trainer's ranks are laid out over the kinds of parallelism.

Source: ``RankGenerator`` of Megatron-Core's ``parallel_state``, order ``tp-cp-ep-dp-pp``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# The axes that the members of one group differ in. "edp" is what expert parallelism leaves of data
# parallelism.
GROUP_AXES: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "dp": ("ep", "edp"),
    "edp": ("edp",),
    "pp": ("pp",),
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The sizes of a trainer's parallelism; experts are spread over data parallel ranks.

    Raises:
        ValueError: a size below 1, or ``expert`` does not divide ``data``.
    """

    tensor: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1
    pipeline: int = 1

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if size < 1:
                raise ValueError(f"{name}: expected at least 1, found {size}.")
        if self.data % self.expert:
            raise ValueError(
                f"expert: expected a divisor of data ({self.data}), found {self.expert}. "
                f"Experts are spread over the data parallel ranks."
            )

    @property
    def axes(self) -> Mapping[str, int]:
        """Size of each axis, the fastest first."""
        return {
            "tp": self.tensor,
            "cp": self.context,
            "ep": self.expert,
            "edp": self.data // self.expert,
            "pp": self.pipeline,
        }

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return math.prod(self.axes.values())

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the rank's place on each axis.

        Raises:
            ValueError: no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank: expected 0 to {self.world_size - 1}, found {rank}.")
        place = {}
        for axis, size in self.axes.items():
            rank, place[axis] = divmod(rank, size)
        return place

    def groups(self, kind: str) -> list[list[int]]:
        """Return the groups of one kind (a key of `GROUP_AXES`), each as ascending global ranks."""
        free = _known(kind)
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world_size):
            place = self.coordinates(rank)
            fixed = tuple(place[axis] for axis in place if axis not in free)
            groups.setdefault(fixed, []).append(rank)
        return list(groups.values())

    def group_of(self, kind: str, rank: int) -> list[int]:
        """Return the group of one kind that ``rank`` belongs to."""
        place, stride, members = self.coordinates(rank), 1, [rank]
        for axis, size in self.axes.items():
            if axis in _known(kind):
                first = -place[axis] * stride
                members = [m + first + k * stride for m in members for k in range(size)]
            stride *= size
        return sorted(members)

    def stage_of_layer(self, layer: int, num_layers: int) -> int:
        """Return the pipeline stage that holds decoder layer ``layer``; stages are contiguous."""
        return layer * self.pipeline // num_layers


def _known(kind: str) -> Iterable[str]:
    if kind not in GROUP_AXES:
        raise ValueError(f"kind: expected one of {', '.join(GROUP_AXES)}, found {kind!r}.")
    return GROUP_AXES[kind]
