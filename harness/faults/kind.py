"""What every fault kind is: its configuration, where it can strike, and what it does there."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict

from harness.contracts import Exchange, Json
from harness.errors import InjectionError


class FaultKind(BaseModel):
    """One kind of fault. Its fields are what a scenario may set beside the addressing.

    A kind lists the points it can strike in ``strikes`` (glob patterns over
    ``harness.fault_points``) and overrides the side, or sides, that those points are on. The
    thread that a kind with ``never_returns`` strikes does nothing any more.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    kind: ClassVar[str]
    strikes: ClassVar[tuple[str, ...]]
    never_returns: ClassVar[bool] = False
    takes_a_core: ClassVar[bool] = False  # for as long as its process lives

    @classmethod
    def can_strike(cls, point: str) -> bool:
        """Whether this kind may be placed at the fault point."""
        return any(fnmatchcase(point, pattern) for pattern in cls.strikes)

    def seeded(self, seed: str) -> Self:
        """Return this fault for one process, with the seed of what it draws when it strikes."""
        return self

    def label(self) -> str:
        """Return a few words for reports, such as ``answers 500``."""
        return self.kind

    async def at_request(self, exchange: Exchange) -> None:
        """Strike a request at an engine's front end.

        Raises:
            InjectionError: this kind only strikes in threads.
        """
        raise InjectionError(self._misplaced("a request"))

    def in_thread(self, where: Mapping[str, Json]) -> None:
        """Strike in the thread of a worker or a rank.

        Raises:
            InjectionError: this kind only strikes requests.
        """
        raise InjectionError(self._misplaced("a thread"))

    def _misplaced(self, found: str) -> str:
        places = ", ".join(self.strikes)
        return (
            f"fault {self.kind}: expected to strike at {places}, found {found}. "
            f"Move the fault to one of those points."
        )
