"""The agreement over a real gloo world, whose ranks are threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, _set_thread_isolation_mode  # type: ignore[attr-defined]
from torch.testing._internal.distributed import multi_threaded_pg

from resync import Agreement, Cause, PeerLost, SourceFailed
from resync.agreement import Code, Decision
from resync.report import PushReport
from resync.steps import Steps
from resync.timeouts import default_group_timeouts, group_timeout_s

RunRanks = Callable[[int, Callable[[int], Any]], list[Any]]


@pytest.fixture
def run_ranks() -> Iterator[RunRanks]:
    """Run a function on every rank of a gloo world, one thread a rank."""
    multi_threaded_pg._install_threaded_pg()  # type: ignore[no-untyped-call]
    _set_thread_isolation_mode(True)

    def run(world_size: int, work: Callable[[int], Any]) -> list[Any]:
        store = HashStore()
        done = threading.Barrier(world_size, timeout=10)

        def one(rank: int) -> Any:
            timeout = timedelta(seconds=8)
            dist.init_process_group(
                "gloo", rank=rank, world_size=world_size, store=store, timeout=timeout
            )
            try:
                return work(rank)
            finally:
                done.wait()
                dist.destroy_process_group()

        with ThreadPoolExecutor(world_size) as threads:
            return list(threads.map(one, range(world_size), timeout=20))

    yield run
    _set_thread_isolation_mode(False)
    multi_threaded_pg._uninstall_threaded_pg()  # type: ignore[no-untyped-call]


def cause(rank: int, message: str = "no") -> Cause:
    """A cause of one rank."""
    return Cause(rank=rank, step="start", engine=None, error="Error", message=message)


LONG = "\u00e9" * 5000

# fmt: off
CASES: list[tuple[list[tuple[Code, list[Cause]]], Decision]] = [
    # each rank's code and causes                                   agreed
    ([(Code.OK, []), (Code.OK, []), (Code.OK, [])],                 Decision(Code.OK)),
    ([(Code.OK, []), (Code.RECONNECT, []), (Code.OK, [])],          Decision(Code.RECONNECT)),
    ([(Code.OK, []), (Code.RECONNECT, []), (Code.FAILED, [cause(2)])],
     Decision(Code.FAILED, (cause(2),))),
    ([(Code.FAILED, [cause(0), cause(0, "too")]), (Code.OK, []), (Code.FAILED, [cause(2, LONG)])],
     Decision(Code.FAILED, (cause(0), cause(0, "too"), cause(2, LONG)))),
]
# fmt: on


def test_settle(run_ranks: RunRanks) -> None:
    """The smallest code decides; every rank gets all causes, in the order of the ranks."""

    def settle(rank: int) -> list[Decision]:
        agreement = Agreement(timeout_s=8)
        decisions = [agreement.settle("start", *given[rank]) for given, _ in CASES]
        agreement.close()
        agreement.close()
        return decisions

    assert run_ranks(3, settle) == [[agreed for _, agreed in CASES]] * 3


def test_same_everywhere(run_ranks: RunRanks) -> None:
    """One different number is noticed on every rank."""
    numbers = [[7, 7, 7], [7, 8, 7], [0, 0, 2**61]]

    def compare(rank: int) -> list[bool]:
        agreement = Agreement(timeout_s=8)
        return [agreement.same_everywhere(row[rank]) for row in numbers]

    assert run_ranks(3, compare) == [[True, False, False]] * 3


def test_peer_that_never_comes(run_ranks: RunRanks) -> None:
    """A rank that does not come costs the time-out of the group, and then `PeerLost`."""
    left = threading.Event()

    def settle(rank: int) -> str:
        agreement = Agreement(timeout_s=0.2)
        if rank == 1:
            left.wait(8)
            return ""
        with pytest.raises(PeerLost) as lost:
            agreement.settle("start")
        with pytest.raises(PeerLost):
            agreement.same_everywhere(1)
        left.set()
        return str(lost.value)

    text = run_ranks(2, settle)[0]
    assert text.startswith("agreement on step start failed: ")
    assert text.endswith(
        ". A trainer rank has died, left or hung; no engine is touched any more. "
        "Restart the trainer."
    )


def test_default_group_timeout(run_ranks: RunRanks) -> None:
    """The time-out of a real gloo group is read; a group that does not tell gives nothing."""

    def read(rank: int) -> tuple[dict[str, float], float | None]:
        own = dist.new_group(backend="gloo", timeout=timedelta(seconds=3))
        return default_group_timeouts(), group_timeout_s(own)

    assert run_ranks(2, read) == [({"the default process group": 8.0}, 3.0)] * 2
    assert default_group_timeouts() == {}
    assert group_timeout_s(object()) is None


def test_one_process() -> None:
    """Without torch.distributed a process agrees with itself."""
    heard: list[tuple[str, Any]] = []

    def observe(step: str, /, **details: Any) -> None:
        heard.append((step, details))

    agreement = Agreement(timeout_s=1, observe=observe)
    assert agreement.settle("start", Code.FAILED, [cause(0)]) == Decision(Code.FAILED, (cause(0),))
    assert agreement.same_everywhere(3)
    agreement.close()
    assert heard == [
        ("agree.start", {"phase": "begin", "code": 0}),
        ("agree.start", {"phase": "end", "code": 0}),
    ]


def test_no_gloo_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the default backend is, the group is gloo's own and the flag is on the CPU."""
    made: list[dict[str, Any]] = []
    reduced: list[tuple[torch.Tensor, Any]] = []

    def new_group(**fields: Any) -> str:
        made.append(fields)
        return "own group"

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 4)
    monkeypatch.setattr(dist, "get_backend", lambda group=None: "nccl")
    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(
        dist, "all_reduce", lambda tensor, op, group: reduced.append((tensor, group))
    )
    agreement = Agreement(timeout_s=90)
    assert agreement.settle("start", Code.RECONNECT) == Decision(Code.RECONNECT)
    assert agreement.same_everywhere(3)
    assert [(group["backend"], group["timeout"]) for group in made] == [
        ("gloo", timedelta(seconds=90))
    ]
    assert [(tensor.device.type, tensor.dtype, group) for tensor, group in reduced] == [
        ("cpu", torch.int32, "own group"),
        ("cpu", torch.int64, "own group"),
    ]


LEAVE = [SourceFailed("gather"), PeerLost("gone")]


@pytest.mark.parametrize("error", LEAVE, ids=["source-failed", "peer-lost"])
def test_not_agreed_on(error: Exception) -> None:
    """A rank that has left the collectives does not agree on it: the others are not there."""
    heard: list[str] = []

    def observe(step: str, /, **details: Any) -> None:
        heard.append(step)

    def work() -> None:
        raise error

    report = PushReport(version="1")
    steps = Steps(Agreement(timeout_s=1, observe=observe), rank=0, sends=True, report=report)
    with pytest.raises(type(error)) as raised:
        steps.on_every_rank("transfer", work)
    assert raised.value is error
    assert (heard, report.seconds) == ([], {})


def test_steps() -> None:
    """An exception of a step is a cause; repeated steps add their seconds up."""
    report = PushReport(version="1")
    agreement = Agreement(timeout_s=1)

    def fail() -> None:
        raise KeyError("x")

    sender, peer = (Steps(agreement, rank=rank, sends=not rank, report=report) for rank in (0, 1))
    assert sender.on_senders("start", fail) == Decision(
        Code.FAILED,
        (Cause(rank=0, step="start", engine=None, error="KeyError", message="'x'"),),
    )
    first_s = report.seconds["start"]
    assert peer.on_senders("start", fail) == Decision(Code.OK)
    assert report.seconds["start"] > first_s > 0
    assert sender.on_every_rank("quiesce", lambda: Code.RECONNECT) == Decision(Code.RECONNECT)


def test_causes_travel_as_json() -> None:
    """A cause survives its JSON form, and reads as one line."""
    cause_ = Cause(rank=2, step="start", engine=1, error="EngineLost", message="gone")
    assert Cause.from_json(cause_.to_json()) == cause_
    assert str(cause_) == "rank 2, step start, engine 1: EngineLost: gone"
    with pytest.raises(TypeError):
        Cause.from_json({"rank": 1, "unknown": 2})
