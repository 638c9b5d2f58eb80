"""Every wait of a push is bounded: the two flags, what follows from them, and who must wait longer.

Source: the two flags of the pull request to vime; defaults of ``init_process_group`` (gloo 30 min)
and of Megatron's ``--distributed-timeout-minutes`` (10 min).
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

INIT_FLAG = "--update-weight-init-timeout"
REQUEST_FLAG = "--update-weight-request-timeout"
DEFAULT_INIT_S = 600.0
DEFAULT_REQUEST_S = 1800.0

# The most requests, one after the other, that the sender makes to one engine between two agreements
# (opening a session: pause state, dirty label, and for target and draft each a start and a finish
# that flush an unknown session, then the start). A unit test counts them.
MAX_REQUESTS_BETWEEN_AGREEMENTS = 8
# After a request's own time-out its engine gets this many more of them to come to rest; then it is
# stuck. The third time-out is the last.
IDLE_TIME_OUTS = 2
# The most such waits for one engine between two agreements: a publish that is not answered, the one
# that repeats it, and then the engine is to be paused.
MAX_IDLE_WAITS_BETWEEN_AGREEMENTS = 2
# The most between two collectives of the trainer's own: unpacked IPC makes an update and a finish
# between two barriers.
REQUESTS_BETWEEN_BARRIERS = 2


class TimeoutOrderError(ValueError):
    """A process group of the trainer would expire before a request of the push does."""


class TimeoutOrderWarning(UserWarning):
    """The same, where ``strict`` is off."""


@dataclass(frozen=True, kw_only=True)
class PushTimeouts:
    """The limits of a push, in seconds; all finite and positive.

    Attributes:
        init_s: total time of ``/init_weight_transfer_engine`` and of opening the channel.
        request_s: total (wall-clock) time of every other control request.
        settle_s: how long the remaining engines of a fan-out are waited for after the first has
            failed, where they wait for each other; and how long a thread may take to unwind.

    Raises:
        ValueError: a limit is not a finite number above zero.
    """

    init_s: float = DEFAULT_INIT_S
    request_s: float = DEFAULT_REQUEST_S
    settle_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("init_s", "request_s", "settle_s"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: expected a finite number of seconds > 0, found {value}.")

    @property
    def open_channel_s(self) -> float:
        """Time that opening the channel may take on a rank: the init request and its unwinding."""
        return self.init_s + min(self.settle_s, 0.1 * self.init_s)

    @property
    def agreement_s(self) -> float:
        """Longest time that a rank can wait for the sender between two agreements.

        The calls that tell what became of a request at several workers share its limit.
        """
        requests_s = MAX_REQUESTS_BETWEEN_AGREEMENTS * self.request_s
        idle_s = MAX_IDLE_WAITS_BETWEEN_AGREEMENTS * self.idle_s
        return self.open_channel_s + requests_s + idle_s + 2 * self.settle_s

    @property
    def idle_s(self) -> float:
        """Longest wait for one engine to come to rest after a request that was not answered."""
        return IDLE_TIME_OUTS * max(self.init_s, self.request_s)

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> PushTimeouts:
        """Read the flags of `add_timeout_arguments`."""
        return cls(
            init_s=args.update_weight_init_timeout, request_s=args.update_weight_request_timeout
        )


def add_timeout_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the two time-out flags with their defaults to a parser, and return it."""
    parser.add_argument(
        INIT_FLAG,
        type=float,
        default=DEFAULT_INIT_S,
        help=(
            "Timeout in seconds of /init_weight_transfer_engine and of opening the weight-transfer "
            "channel on the trainer's side. Keep it above vLLM's own rendezvous limit (300 s)."
        ),
    )
    parser.add_argument(
        REQUEST_FLAG,
        type=float,
        default=DEFAULT_REQUEST_S,
        help=(
            "Timeout in seconds of every other control request of a weight push (pause, start, "
            "update, finish, version, resume). Keep it below the time-outs of the trainer's "
            "process groups: the other ranks wait in them while the request runs."
        ),
    )
    return parser


def group_timeout_s(group: Any) -> float | None:
    """Return a process group's time-out in seconds, or ``None`` where torch does not tell.

    The group's shortest backend counts: it is the one that ends a waiting rank first.
    """
    found = []
    for device in getattr(group, "_device_types", []):
        options = getattr(group._get_backend(device), "options", None)
        timeout = getattr(options, "_timeout", None)
        if isinstance(timeout, timedelta):
            found.append(timeout.total_seconds())
    return min(found, default=None)


def default_group_timeouts() -> dict[str, float]:
    """Return the time-out of the default process group, if there is one that tells."""
    import torch.distributed as dist  # here, so that who only reckons needs no torch

    if not dist.is_initialized():
        return {}
    seconds = group_timeout_s(dist.group.WORLD)
    return {} if seconds is None else {"the default process group": seconds}


def check_group_timeouts(
    timeouts: PushTimeouts, groups: Mapping[str, float], *, strict: bool = False
) -> None:
    """Check that no process group of the trainer ends a wait that a request may still end.

    While the sender waits for its requests, the other ranks wait for it in a gather or a barrier of
    the trainer's own groups. If those expire first, the job dies and nothing is resent.

    Args:
        timeouts: of the push.
        groups: name -> time-out in seconds of each group that a pass runs collectives on.
        strict: refuse instead of warning.

    Raises:
        TimeoutOrderError: ``strict``, and a group expires no later than a request.
    """
    needed_s = REQUESTS_BETWEEN_BARRIERS * timeouts.request_s + timeouts.settle_s
    short = {name: seconds for name, seconds in groups.items() if seconds <= needed_s}
    if not short:
        return
    found = ", ".join(f"{name} {seconds:g} s" for name, seconds in sorted(short.items()))
    message = (
        f"expected process groups that outlast {REQUESTS_BETWEEN_BARRIERS} requests of a weight "
        f"push ({REQUEST_FLAG} {timeouts.request_s:g} s each + {timeouts.settle_s:g} s), found "
        f"{found}: the other ranks would die in a collective before a failed request is resent. "
        f"Lower {REQUEST_FLAG} or raise the groups' time-out."
    )
    if strict:
        raise TimeoutOrderError(message)
    warnings.warn(message, TimeoutOrderWarning, stacklevel=2)
