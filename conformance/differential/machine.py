"""The random sequences: a Hypothesis state machine whose every rule is one call on both engines."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from conformance.differential.calls import Call, Init, Later, Part, Payload, Request, Starve, Update
from conformance.differential.duel import ABORT, CHECKSUM, HEALTH, Duel
from conformance.differential.sides import Side

# An unread reply stays in its worker's ring, of 10: past that the worker blocks, on both engines.
MAX_FAILURES = 6
PROBE = Request("POST /collective_rpc", {"method": "get_supported_tasks"}, opaque=True)
RESET = Request("POST /weight_checker", {"action": "reset"})
IDLE = Request("POST /collective_rpc", {"method": "check_health"})

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the sequences of one comparison are made of.

    Attributes:
        workers: tensor-parallel size of both engines.
        failing: what the maker is to let fail, one of these per sequence.
        in_place: whether a tensor may come for a layer that was loaded in the same session. vLLM on
            a CPU has packed the layer away by then, and refuses it; on a GPU it is loaded.
        resets: whether the weights may be zeroed.
        deaths: whether a sequence may end in a completion that kills both engines.
        limit_s: how long an answer may take.
    """

    workers: int = 1
    failing: tuple[Mapping[str, int], ...] = ({},)
    in_place: bool = True
    resets: bool = True
    deaths: bool = True
    limit_s: float = 20.0


# fmt: off
FRONT_END: st.SearchStrategy[Call] = st.sampled_from([Request(request, body) for request, body in (
    # What the front end refuses or answers by itself.
    ("POST /init_weight_transfer_engine",   None),
    ("POST /init_weight_transfer_engine",   {"init_info": None}),
    ("POST /init_weight_transfer_engine",   {"init_info": [1]}),
    ("POST /update_weights",                {}),
    ("POST /update_weights",                {"update_info": "x"}),
    ("POST /update_weights",                {"update_info": ["x"]}),
    ("POST /update_weights",                {"update_info": 3}),
    ("POST /finish_weight_update",          {"weight_version": 7}),
    ("POST /update_weight_version",         {"version": "7"}),
    ("POST /update_weight_version",         {"new_version": 8}),
    ("POST /pause?mode=zzz",                None),
    ("POST /sleep?level=3",                 None),
    ("POST /collective_rpc",                {}),
    ("POST /collective_rpc",                [1]),
    ("POST /weight_checker",                {"action": "nope"}),
    ("POST /weight_checker",                {"action": "compare"}),
    ("GET /get_world_size?include_dp=true", None),
    ("GET /health",                         None),
    ("GET /is_sleeping",                    None),
    ("GET /nope",                           None),
    ("GET /pause",                          None),
)])
PAUSING: st.SearchStrategy[Call] = st.sampled_from([Request(request) for request in (
    "POST /pause", "POST /pause?mode=abort", "POST /pause?mode=wait", "POST /pause?mode=keep",
    "POST /pause?clear_cache=false", "POST /resume", "POST /resume",
    "POST /sleep", "POST /sleep?level=0", "POST /sleep?level=2", "POST /sleep?mode=keep",
    "POST /wake_up", "POST /wake_up?tags=weights", "POST /wake_up?tags=kv_cache",
    "POST /wake_up?tags=weights&tags=kv_cache", "POST /wake_up?tags=scheduling",
)])
AROUND: st.SearchStrategy[Call] = st.sampled_from([
    Init(), Init(), PROBE, IDLE, CHECKSUM, RESET, Later(), Later(), ABORT,
    Request("POST /shutdown_weight_transfer_engine"),
    Request("POST /start_draft_weight_update"),
    Request("POST /update_weight_version", {"new_version": "a"}),
    Request("POST /update_weight_version", {"new_version": ""}),
    Request("POST /reset_prefix_cache"),
    Request("POST /reset_mm_cache"),
    Request("POST /reset_encoder_cache"),
])
# fmt: on
START = Request("POST /start_weight_update")
FINISHES = [
    Request("POST /finish_weight_update", body)
    for body in (
        None,
        {},
        {"weight_version": None},
        {"weight_version": "a"},
        {"weight_version": "b"},
        {"weight_version": ""},
        {"version": "7"},
    )
]
UPDATES = st.one_of(
    st.just(Update(0)),
    st.just(Update(0)),
    st.integers(1, 11).map(lambda stop: Update(0, Part(stop=stop))),
    st.integers(1, 11).map(lambda start: Update(0, Part(start=start))),
    st.integers(1, 3).map(lambda stop: Update(0, Part("fused", stop=stop))),
    st.integers(1, 11).map(lambda stop: Update(0, Part(stop=stop), unknown=True)),
    st.integers(1, 3).map(lambda stop: Update(0, Part("fused", stop=stop), misshapen=True)),
    st.booleans().map(lambda accepts: Payload((accepts,))),
    st.lists(st.booleans(), min_size=2, max_size=4).map(lambda on: Payload(tuple(on))),
)


def _one_of(*kinds: tuple[int, st.SearchStrategy[Call]]) -> st.SearchStrategy[Call]:
    """Return one of these, so many times out of all."""
    each = [calls for times, calls in kinds for _ in range(times)]
    # Not `st.one_of`: that takes a choice of choices for one large choice.
    return st.sampled_from(range(len(each))).flatmap(each.__getitem__)


SESSION = _one_of((3, st.just(START)), (4, UPDATES), (3, st.sampled_from(FINISHES)))
ANYTHING = _one_of((5, SESSION), (2, PAUSING), (2, AROUND), (1, FRONT_END), (1, st.just(Starve())))


class DifferentialMachine(RuleBasedStateMachine):
    """One random sequence on a fresh pair of engines; subclasses set the class variables."""

    sides: ClassVar[tuple[Side, Side]]
    plan: ClassVar[Plan]
    loop: ClassVar[asyncio.AbstractEventLoop]

    duel: Duel | None = None
    over = False
    loaded = False  # whether tensors came since the last finish

    @initialize(data=st.data())
    def engines(self, data: st.DataObject) -> None:
        """Make both engines."""
        failing = data.draw(st.sampled_from(self.plan.failing))
        duel = Duel(
            self.sides, workers=self.plan.workers, failing=failing, limit_s=self.plan.limit_s
        )
        self.duel = duel
        self._run(duel.open())

    def teardown(self) -> None:
        """Read what several workers have left unread, and end both engines."""
        if self.duel is None:
            return
        try:
            if self.plan.workers > 1 and sys.exc_info()[0] is None:
                for call in (PROBE, IDLE, CHECKSUM):
                    self._run(self.duel.play(call))
        finally:
            self._run(self.duel.close())

    def play(self, call: Call) -> None:
        """Make one call on both and compare."""
        duel = self.current
        self._run(duel.play(call))
        if duel.dead:
            self._run(duel.play(HEALTH))
        self.over = duel.dead or (self.plan.workers > 1 and duel.failures >= MAX_FAILURES)
        if isinstance(call, Update):
            self.loaded = True
        elif call in FINISHES and duel.last_status == 200:
            self.loaded = False

    @property
    def current(self) -> Duel:
        """The pair of engines of this sequence."""
        assert self.duel is not None, "`engines` comes first"
        return self.duel

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    # Hypothesis leaves some rules out of each sequence. So there are two, and each will do alone.

    @rule(call=SESSION)
    def session(self, call: Call) -> None:
        """Start, update or finish."""
        self.anything(call)

    @rule(call=ANYTHING)
    def anything(self, call: Call) -> None:
        """Make any call; none where it makes no sense now."""
        match call:
            case Update():
                # Each brings weights that no memory has held before.
                call = replace(call, step=self.current.newest + 1)
            case Payload(on=on) if len(on) > 1:
                call = Payload(on[: self.plan.workers])
        if not self.over and self._allowed(call):
            self.play(call)

    def _allowed(self, call: Call) -> bool:
        plan = self.plan
        match call:
            case Update():
                return plan.in_place or not self.loaded
            case Payload(on=on):
                return len(on) == 1 or plan.workers > 1
            case Starve():
                return plan.deaths and self.current.may(call)
        return self.current.may(call) and (plan.resets or call != RESET)
