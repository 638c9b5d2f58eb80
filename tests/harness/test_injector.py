"""The injector: which visits it counts, which of them a fault strikes, and what it records."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from harness.errors import InjectionError
from harness.injector import ScenarioInjector
from harness.scenario import FAULT_SPECS, Expectation, Scenario

Visit = tuple[str, Mapping[str, Any]]


def _injector(
    *faults: dict[str, Any], role: str = "engine", events: list[Any] | None = None, push: int = 1
) -> ScenarioInjector:
    """Return the injector of engine or rank 0 of a scenario with these faults."""
    scenario = Scenario(
        proves="It holds.",
        transport="ipc",
        pushes=3,
        expect=(Expectation(outcome="resumed"),),
        faults=tuple(FAULT_SPECS[fault["kind"]](**fault) for fault in faults),
    )
    kept = [] if events is None else events

    def record(event: str, /, **fields: Any) -> None:
        kept.append((event, fields))

    given = scenario.faults_for("rank" if role == "rank" else "engine", 0)
    return ScenarioInjector(given, role=role, index=0, record=record, push=push)


def _reject(**fields: Any) -> dict[str, Any]:
    return {"kind": "reject", "at": "engine.update", "engine": 0} | fields


def _raise(**fields: Any) -> dict[str, Any]:
    return {"kind": "raise", "at": "worker.load", "engine": 0} | fields


UPDATE: Visit = ("engine.update", {"session": "target"})
DRAFT: Visit = ("engine.update", {"session": "draft"})
START: Visit = ("engine.start", {"session": "target"})


def _load(worker: int, tensor: str) -> Visit:
    return ("worker.load", {"worker": worker, "session": "target", "tensor": tensor})


LOAD_0_Q, LOAD_0_K, LOAD_1_Q = _load(0, "a.q_w"), _load(0, "a.k_w"), _load(1, "a.q_w")

# fmt: off
STRIKES = [
    # id           fault                      visits                     strikes
    ("first",      _reject(),                 [UPDATE, UPDATE],          [1, 0]),
    ("second",     _reject(nth=2),            [UPDATE, UPDATE, UPDATE],  [0, 1, 0]),
    ("several",    _reject(nth=[1, 3]),       [UPDATE, UPDATE, UPDATE],  [1, 0, 1]),
    ("always",     _reject(nth="always"),     [UPDATE, UPDATE],          [1, 1]),
    ("other-point", _reject(),                [START, UPDATE],           [0, 1]),
    ("session",    _reject(session="draft"),  [UPDATE, DRAFT, DRAFT],    [0, 1, 0]),
    ("other-push", _reject(push=2),           [UPDATE],                  [0]),
    ("all-engines", _reject(engine="all"),    [UPDATE],                  [1]),
    ("tensor",     _raise(tensor="*.k_*"),    [LOAD_0_Q, LOAD_0_K],      [0, 1]),
    ("each-worker", _raise(),                 [LOAD_0_Q, LOAD_1_Q, LOAD_0_K], [1, 1, 0]),
    ("one-worker", _raise(worker=1),          [LOAD_0_Q, LOAD_1_Q, LOAD_0_K], [0, 1, 0]),
]
# fmt: on


@pytest.mark.parametrize(
    ("fault", "visits", "strikes"), [case[1:] for case in STRIKES], ids=[c[0] for c in STRIKES]
)
def test_strikes(fault: dict[str, Any], visits: list[Visit], strikes: list[int]) -> None:
    """A fault strikes the visits whose count, over those that match it, is in its nth."""
    injector = _injector(fault)
    found = [injector.pick(point, **where) is not None for point, where in visits]
    assert found == [bool(strike) for strike in strikes]


def test_records_before_it_acts() -> None:
    """The journal has the strike, with its count and place, although the fault raises."""
    events: list[Any] = []
    injector = _injector(_raise(nth=2, message="no memory"), events=events)
    where = {"worker": 0, "session": "target", "tensor": "a"}
    injector.reach("worker.load", **where)
    assert events == []
    with pytest.raises(RuntimeError, match=r"^no memory$"):
        injector.reach("worker.load", **where)
    fields = {
        "fault": 0,
        "kind": "raise",
        "label": "raises",
        "at": "worker.load",
        "count": 2,
        "push": 1,
    }
    assert events == [("fault", {**fields, "where": where})]


def test_counts_afresh_in_each_push() -> None:
    """A new push starts from one; naming the push that is under way does not."""
    injector = _injector(_reject(push=2, nth=2))
    found = []
    for push in (1, 2, 2, 3, 2):
        injector.begin_push(push)
        found.append(injector.pick("engine.update", session="target") is not None)
    assert found == [False, False, True, False, False]


def test_the_connect_is_push_zero() -> None:
    """Before the first push, only faults of push 0 strike."""
    injector = _injector(_reject(at="engine.init", push=0), _reject(at="engine.init"), push=0)
    assert [injector.pick("engine.init") is not None for _ in range(2)] == [True, False]
    injector.begin_push(1)
    assert [injector.pick("engine.init") is not None for _ in range(2)] == [True, False]


def test_first_of_the_scenario_strikes_and_all_count() -> None:
    """Where two faults match, both count the visit and the first one acts."""
    events: list[Any] = []
    injector = _injector(_reject(), _reject(nth=[1, 2]), events=events)
    for _ in range(3):
        injector.pick("engine.update", session="target")
    assert [(fields["fault"], fields["count"]) for _, fields in events] == [(0, 1), (1, 2)]


def test_disarm() -> None:
    """After disarm nothing strikes."""
    injector = _injector(_reject(nth="always"))
    injector.disarm()
    assert injector.pick("engine.update", session="target") is None


def test_rank_step_by_name() -> None:
    """A step of the target is selected by its name, as a pattern."""
    fault = {"kind": "raise", "at": "rank.step", "rank": "all", "name": "agree.*"}
    injector = _injector(fault, role="rank")
    assert injector.pick("rank.step", name="reconnect") is None
    assert injector.pick("rank.step", name="agree.start") is not None


def test_threads() -> None:
    """Visits from many threads are each counted once."""
    injector = _injector(_reject(nth=list(range(1, 4001, 2))))
    struck: list[bool] = []

    def visit() -> None:
        struck.extend(injector.pick("engine.update", session=None) is not None for _ in range(500))

    threads = [threading.Thread(target=visit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(struck), sum(struck)) == (4000, 2000)


FAULT = {
    "fault": 3,
    "kind": "reject",
    "at": "engine.update",
    "index": 0,
    "push": 1,
    "nth": [1],
    "where": {},
    "options": {},
}
# fmt: off
REFUSED = [
    ("other-engine", {"index": 1},
     "fault 3: expected one for engine 0, found engine.update on 1. "
     "Give a process only its own faults."),
    ("a-rank's", {"at": "rank.gather"},
     "fault 3: expected one for engine 0, found rank.gather on 0. "
     "Give a process only its own faults."),
    ("unknown-kind", {"kind": "explode"},
     "fault 3: expected a kind of disconnect, freeze, gil, hang, kill, lie, lock, loop, "
     "port_taken, raise, reject, reply_lost, request_lost, slow, stale_engines, stale_version, "
     "swallow, found 'explode'. List new kinds in harness/faults/__init__.py."),
]
# fmt: on


@pytest.mark.parametrize(
    ("change", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_refused(change: dict[str, Any], message: str) -> None:
    """A process refuses faults that are not its own, and kinds that nobody knows."""
    with pytest.raises(InjectionError) as caught:
        ScenarioInjector([FAULT | change], role="engine", index=0, record=lambda event, **f: None)
    assert str(caught.value) == message


@pytest.mark.parametrize("point", ["engine.updat", "rank.gather"])
def test_our_own_mistakes(point: str) -> None:
    """Reaching a point that is not listed, or is another role's, is our mistake."""
    with pytest.raises(AssertionError):
        _injector().pick(point)
