"""What can go wrong in a push, and the one record of it that every rank shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resync.report import PushReport


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why one step failed on one rank. Travels between ranks as JSON, never as a pickle.

    Attributes:
        rank: global rank that saw the failure.
        step: the step it happened in: ``quiesce``, ``start``, ``transfer``, ``commit``, ...
        engine: index of the engine that failed, or ``None`` where no engine is to blame.
        error: name of the exception's class.
        message: its text.
    """

    rank: int
    step: str
    engine: int | None
    error: str
    message: str

    def __str__(self) -> str:
        where = "" if self.engine is None else f", engine {self.engine}"
        return f"rank {self.rank}, step {self.step}{where}: {self.error}: {self.message}"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Cause:
        """Read what `to_json` gave. Raises ``TypeError`` on other fields."""
        return cls(**fields)

    @classmethod
    def of(cls, error: BaseException, *, rank: int, step: str) -> list[Cause]:
        """Return the causes that an exception stands for: one an engine for a `FleetError`."""
        if isinstance(error, FleetError):
            return [
                cls(rank=rank, step=step, engine=e.engine, error=type(e).__name__, message=str(e))
                for e in error.failures
            ]
        engine = error.engine if isinstance(error, EngineError) else None
        name = type(error).__name__
        return [cls(rank=rank, step=step, engine=engine, error=name, message=str(error))]


class ResyncError(RuntimeError):
    """Base of every error that this package raises on purpose.

    Attributes:
        leaves_job: the rank that raises it must leave the job (end its process), so that the other
            ranks do not wait for it in a collective until the group's time-out.
    """

    leaves_job = False


class EngineError(ResyncError):
    """A control request to one engine failed.

    Attributes:
        engine: index of the engine.
        action: what was asked of it: ``start``, ``update``, ...
    """

    def __init__(self, engine: int, action: str, message: str) -> None:
        super().__init__(f"engine {engine}: {action}: {message}")
        self.engine = engine
        self.action = action


class EngineRejected(EngineError):
    """The engine answered, and said no. ``status`` is the HTTP status, ``text`` what it said."""

    def __init__(self, engine: int, action: str, status: int, text: str) -> None:
        super().__init__(engine, action, f"expected HTTP 200, found {status}: {text}")
        self.status = status
        self.text = text


class EngineLost(EngineError):
    """No answer came: whether the request took effect is unknown."""


class EngineTimeout(EngineLost):
    """No answer within the request's total time-out."""


class EngineMismatch(EngineError):
    """The engine answered 200, but its state is not what it must be at this point."""


class EngineNeedsRestart(EngineError):
    """The engine answers, but must be restarted before it can be given weights again."""


class EngineStuck(EngineNeedsRestart):
    """The engine does not come to rest after a time-out. It is asked nothing until a restart."""


class FleetError(ResyncError):
    """At least one engine of a fan-out failed; ``failures`` holds one error for each that did."""

    def __init__(self, failures: Sequence[EngineError]) -> None:
        super().__init__("; ".join(str(failure) for failure in failures))
        self.failures = tuple(failures)


class ChannelError(ResyncError):
    """The data-plane channel between the trainer and the engines could not be opened."""


class RankMustLeave(ResyncError):
    """This rank has left collectives that others wait in, or lost a rank: nothing can be agreed.

    The rank must leave the job; the trainer must be restarted.

    Attributes:
        report: what this rank knew of the push that it left; ``None`` outside of a push.
    """

    leaves_job = True
    report: PushReport | None = None


class SourceFailed(RankMustLeave):
    """The weight source raised on this rank, in the middle of a collective pass.

    Never recovered: the other ranks wait in a gather that this rank has left. The rank must leave
    the job; the others raise when their gather ends.
    """


class SendFailed(RankMustLeave):
    """The trainer engine raised on this rank, between collectives of its own.

    On IPC every chunk ends in a barrier of all ranks, and the client of the sender raises nothing:
    whatever else the trainer engine raises has taken this rank out of collectives that the others
    are in, or will be.
    """


class PeerLost(RankMustLeave):
    """An agreement with the other ranks failed: a rank has died, left or hung.

    The updater touches no engine after it; the trainer must be restarted.
    """


class PushFailed(ResyncError):
    """A push failed on every rank, with the same causes on every rank.

    Attributes:
        causes: of every attempt, by rank.
        report: what happened; its engine states are complete on the sender only.
    """

    def __init__(self, message: str, causes: Sequence[Cause], report: PushReport) -> None:
        super().__init__(message)
        self.causes = tuple(causes)
        self.report = report


class ConnectFailed(ResyncError):
    """Connecting to the engines failed on every rank, with the same causes on every rank.

    Attributes:
        causes: of the last channel that was tried, by rank.
        attempts: channels that were tried; 0 where it did not come to that.
    """

    def __init__(self, message: str, causes: Sequence[Cause], *, attempts: int = 0) -> None:
        super().__init__(message)
        self.causes = tuple(causes)
        self.attempts = attempts


class UpdaterUnusable(ResyncError):
    """The updater is not connected, was closed, or lost a peer."""


def describe(causes: Iterable[Cause]) -> str:
    """Return all causes in one line, for an error message."""
    return " | ".join(str(cause) for cause in causes)
