"""What a push tells about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from resync.errors import Cause


class Bytes(StrEnum):
    """What is known of the weights' bytes on one engine."""

    UNCHANGED = "unchanged"  # nothing was written by this push
    DIRTY = "dirty"  # something was written: only a full push may follow, generation stays paused
    COMMITTED = "committed"  # all of this push was written and every rank agreed on it
    STUCK = "stuck"  # nothing more can be asked of the engine until it is restarted


@dataclass(frozen=True, kw_only=True)
class EngineReport:
    """One engine as the sender last knew it."""

    index: int
    bytes: Bytes
    label: str | None  # weight version it last reported; None: it did not say
    paused: bool | None  # None: not known
    quarantined: bool = False  # the push went on without it


@dataclass
class AttemptReport:
    """One complete send, or as much of it as happened."""

    number: int
    bytes_sent: int = 0  # yielded by the weight source on this rank, counted once
    causes: tuple[Cause, ...] = ()


@dataclass
class PushReport:
    """What one push did. On ranks other than the sender ``engines`` is empty.

    Attributes:
        version: the version that the push was to publish.
        seconds: step -> wall-clock seconds on this rank, waiting for the other ranks included.
        retries: control requests that were repeated in place (publish, resume).
        degraded: the version is published and generation is running, but for engines that are
            quarantined; the same on every rank.
    """

    version: str
    attempts: list[AttemptReport] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    retries: int = 0
    degraded: bool = False
    engines: tuple[EngineReport, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of the last attempt: what a throughput should be computed from."""
        return self.attempts[-1].bytes_sent if self.attempts else 0

    def to_json(self) -> Mapping[str, Any]:
        """Return the report as JSON types."""
        return {
            "version": self.version,
            "attempts": len(self.attempts),
            "causes": [[c.to_json() for c in a.causes] for a in self.attempts],
            "bytes_sent": [a.bytes_sent for a in self.attempts],
            "seconds": {step: round(s, 6) for step, s in self.seconds.items()},
            "retries": self.retries,
            "degraded": self.degraded,
            "engines": [
                {
                    "index": e.index,
                    "bytes": str(e.bytes),
                    "label": e.label,
                    "paused": e.paused,
                    "quarantined": e.quarantined,
                }
                for e in self.engines
            ],
        }
