"""The waits of a push, which time-out ends each first, and what that looks like."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from harness.authoring.job_limits import MINUTE_S, VLLM, JobLimits

FINE, EARLY, NEVER = "fine", "too early", "never"
REQUEST_FLAG = "--update-weight-request-timeout"
INIT_FLAG = "--update-weight-init-timeout"
GROUPS_FLAG = "--distributed-timeout-minutes"
VLLM_CLIENT = "HTTPVLLMWeightSyncClient(timeout=...)"


@dataclass(frozen=True, kw_only=True)
class Timer:
    """One time-out that may end a wait.

    Attributes:
        what: in words.
        seconds: after which it fires; ``inf`` where it never does.
        looks_like: what is seen then.
    """

    what: str
    seconds: float
    looks_like: str


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One wait of a push.

    Attributes:
        who: waits, and for whom.
        rightful: the time-out that ought to end it.
        others: those that must fire later, or not at all.
        change: what to change where one of them does not.
    """

    who: str
    rightful: Timer
    others: Sequence[Timer] = ()
    change: str

    @property
    def in_order(self) -> list[Timer]:
        """Every time-out, the first to fire first; of equal ones the rightful is no winner."""
        return sorted((*self.others, self.rightful), key=lambda timer: timer.seconds)

    @property
    def verdict(self) -> str:
        """``fine``, ``too early`` or ``never``."""
        first = self.in_order[0]
        if math.isinf(first.seconds):
            return NEVER
        return FINE if first is self.rightful else EARLY


@dataclass(frozen=True)
class Sums:
    """What a push of ``resync`` may take, in seconds."""

    between_barriers_s: float
    agreement_s: float
    idle_s: float
    open_channel_s: float


def sums_of(request_s: float, init_s: float) -> Sums:
    """Return the sums of ``resync.timeouts`` for these limits."""
    if math.isinf(request_s) or math.isinf(init_s):
        return Sums(math.inf, math.inf, math.inf, math.inf)
    module = _resync_timeouts()
    timeouts = module.PushTimeouts(init_s=init_s, request_s=request_s)
    between_s = module.REQUESTS_BETWEEN_BARRIERS * request_s + timeouts.settle_s
    return Sums(between_s, timeouts.agreement_s, timeouts.idle_s, timeouts.open_channel_s)


def _resync_timeouts() -> ModuleType:
    """Return ``resync.timeouts`` alone: importing it by its name imports its package, and torch."""
    name = "resync.timeouts"
    if name in sys.modules:
        return sys.modules[name]
    package = importlib.util.find_spec("resync")  # found, and not imported
    assert package is not None
    assert package.origin is not None
    spec = importlib.util.spec_from_file_location(
        f"{__name__}:{name}", Path(package.origin).with_name("timeouts.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


def waits_of(job: JobLimits) -> list[Wait]:
    """Return every wait of a push, in the order of a push."""
    sums = sums_of(job.seconds("request"), job.seconds("init"))
    return [
        _joining(job),
        _pass(job, sums),
        _request(job),
        _agreement(job, sums),
        *([_health(job)] if job.is_supervised else []),
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f}"


def _nccl_text(seconds: float, operation: str) -> str:
    ms = _milliseconds(seconds)
    return (
        f"[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=..., "
        f"OpType={operation}, ..., Timeout(ms)={ms}) ran for {ms} milliseconds before timing out. "
        "Then every trainer process is taken down: nothing is resent, and the engines stay paused "
        "in an open session"
    )


def _gloo_text(seconds: float) -> str:
    return (
        f"RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:...] Timed out waiting "
        f"{_milliseconds(seconds)}ms for recv operation to complete"
    )


def _limiter(job: JobLimits, flag: str) -> str:
    """Return what sets the limit of a request that resync would bound by a flag."""
    return VLLM_CLIENT if job.client is VLLM else flag


def _request_text(job: JobLimits, action: str, seconds: float) -> str:
    if job.client is VLLM:
        return (
            "requests.exceptions.ReadTimeout: HTTPConnectionPool(host=..., port=...): Read timed "
            f"out. (read timeout={seconds:g}). The engine may still carry the request out"
        )
    return (
        f"EngineTimeout: engine 0: {action}: expected an answer within {seconds:g} s, found none. "
        "The engine may still carry the request out"
    )


def _joining(job: JobLimits) -> Wait:
    store_s, init_s = job.seconds("rendezvous"), job.seconds("init")
    limiter = _limiter(job, INIT_FLAG)
    again = ", and the connect is tried once more on a fresh port" if job.has_resync else ""
    waits = ", and the second channel has to wait for them" if job.has_resync else ""
    return Wait(
        who="connect: the sender and the engines' workers meet in vLLM's rendezvous, and the init "
        "request waits for them",
        rightful=Timer(
            what="vLLM's rendezvous store",
            seconds=store_s,
            looks_like=f"torch.distributed.DistStoreError: wait timeout after "
            f"{_milliseconds(store_s)}ms; the engine answers the init with 500{again}",
        ),
        others=(
            Timer(
                what=limiter,
                seconds=init_s,
                looks_like=f"{_request_text(job, 'init', init_s)}. The workers are still in the "
                f"rendezvous{waits}",
            ),
        ),
        change=f"Raise {limiter} above {store_s:g} s, vLLM's own limit, so that its answer "
        "comes first",
    )


def _pass(job: JobLimits, sums: Sums) -> Wait:
    groups_s, request_s = job.seconds("trainer_groups"), job.seconds("request")
    if job.is_colocated:
        who = (
            "pass, IPC: the other ranks wait in all_gather_object or the barrier of a chunk, on "
            "the WORLD group, while the sender's update and finish run"
        )
    else:
        who = (
            "pass, NCCL: the other ranks wait in the gather of the next tensor, while the sender's "
            "update runs"
        )
    groups = Timer(
        what=f"the trainer's NCCL groups ({GROUPS_FLAG})",
        seconds=groups_s,
        looks_like=_nccl_text(groups_s, "ALLREDUCE" if job.is_colocated else "ALLGATHER"),
    )
    if not job.has_resync:
        left = Timer(
            what="the sender, which has left the pass when its request failed",
            seconds=math.inf,
            looks_like="",
        )
        change = "Finish the pass of a sender whose request failed, then agree (resync does)"
        return Wait(who=who, rightful=left, others=(groups,), change=change)
    request = Timer(
        what=f"{REQUEST_FLAG} (two requests, and time to settle)",
        seconds=sums.between_barriers_s,
        looks_like=f"{_request_text(job, 'update', request_s)}. All ranks leave the pass, agree, "
        "and the model is sent once more",
    )
    change = _reordered(groups_s, request_s, sums)
    return Wait(who=who, rightful=request, others=(groups,), change=change)


def _reordered(groups_s: float, request_s: float, sums: Sums) -> str:
    """Return what brings the requests of a pass below the groups' time-out."""
    settle_s = sums.between_barriers_s - 2 * request_s
    lower_s = math.ceil((groups_s - settle_s) / 2) - 1
    minutes = math.floor(sums.between_barriers_s / MINUTE_S) + 1
    higher = f"{GROUPS_FLAG} to {minutes} or more"
    if lower_s < 1:
        return f"Raise {higher}"
    return f"Lower {REQUEST_FLAG} to {lower_s} s or less, or raise {higher}"


def _request(job: JobLimits) -> Wait:
    request_s = job.seconds("request")
    silent = "the trainer stands still and logs nothing, generation is paused, /health answers 200"
    return Wait(
        who="sender: one request to an engine that does not answer (vLLM's server has no limit on "
        "them, nor have its NCCL receivers; its own HTTP client, which resync does without, waits "
        f"{VLLM.limit_s:g} s for each read)",
        rightful=Timer(
            what=_limiter(job, REQUEST_FLAG),
            seconds=request_s,
            looks_like=silent if math.isinf(request_s) else _request_text(job, "update", request_s),
        ),
        change=f"Give requests a finite time-out (resync does: {REQUEST_FLAG})",
    )


def _agreement(job: JobLimits, sums: Sums) -> Wait:
    if job.has_resync:
        lost = _gloo_text(sums.agreement_s)
        return Wait(
            who="agreement: the other ranks wait for the sender, which may spend requests, the "
            f"wait for an idle engine ({sums.idle_s:g} s), the clean-up and a new channel",
            rightful=Timer(
                what="resync's own agreement group, whose time-out follows from the two flags",
                seconds=sums.agreement_s,
                looks_like=f"PeerLost: agreement on step transfer failed: {lost}. A trainer rank "
                "has died, left or hung; no engine is touched any more. Restart the trainer",
            ),
            change="Nothing",
        )
    request_s, gloo_s = job.seconds("request"), job.seconds("gloo_groups")
    return Wait(
        who="barrier: the other ranks wait for the sender on the trainer's gloo group, after the "
        "pause and before the resume",
        rightful=Timer(
            what="the sender's request",
            seconds=request_s,
            looks_like="the sender's request fails, and so does the push",
        ),
        others=(
            Timer(what="the trainer's gloo groups", seconds=gloo_s, looks_like=_gloo_text(gloo_s)),
        ),
        change="Give the requests a time-out below the group's (resync does)",
    )


def _health(job: JobLimits) -> Wait:
    killed_s = job.seconds("health_interval") + job.seconds("health_timeout")
    return Wait(
        who="supervisor: its health check waits for an engine whose front end does not answer "
        "(one that is stuck in a receive does answer: /health stays 200)",
        rightful=Timer(
            what="--rollout-health-check-interval and -timeout",
            seconds=killed_s,
            looks_like="the supervisor kills the engine; the sender sees the connection break "
            "(EngineLost), and over NCCL the other engines go on receiving until they are "
            "restarted",
        ),
        change="Nothing",
    )
