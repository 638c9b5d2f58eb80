"""Pause, resume, sleep and wake-up: what each makes of each state.

`TABLE` is the pause machine of facts 1.2 (vLLM 0.32, ``v1/engine/core.py`` and
``v1/executor/abstract.py``), cell by cell; each is a rule of its own, ``pause[sleeping-wake_up]``.
Every request is answered 200 in every state; what differs is the state afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.engine.contract import EngineMaker, EngineUnderTest, Step, converse
from conformance.engine.rules import Check, proves

CORE, EXECUTOR = "vllm/v1/engine/core.py", "vllm/v1/executor/abstract.py"


@dataclass(frozen=True)
class State:
    """One state, how to get there, and what tells it from the others.

    Attributes:
        reach: the requests that lead there.
        paused: what ``/is_paused`` says.
        sleeping: what ``/is_sleeping`` says; a merely paused engine says so as well.
        asleep: the tags of the memory that is asleep.
    """

    reach: Sequence[str]
    paused: bool
    sleeping: bool
    asleep: frozenset[str] = frozenset()


BOTH = frozenset({"weights", "kv_cache"})
STATES: Mapping[str, State] = {
    "running": State([], False, False),
    "paused": State(["/pause"], True, True),
    "sleeping": State(["/sleep"], True, True, BOTH),
    "drowsy": State(["/sleep", "/wake_up?tags=weights"], True, True, frozenset({"kv_cache"})),
    # A resume does not wake memory up: the scheduler runs over weights that are asleep.
    "sleepwalking": State(["/sleep", "/resume"], False, True, BOTH),
}

# fmt: off
TABLE: tuple[tuple[str, ...], ...] = (
    # request                    running     paused      sleeping       drowsy      sleepwalking
    ("/pause",                   "paused",   "paused",   "sleeping",    "drowsy",   "sleeping"),
    ("/pause?mode=wait",         "paused",   "paused",   "sleeping",    "drowsy",   "sleeping"),
    ("/pause?mode=keep",         "paused",   "paused",   "sleeping",    "drowsy",   "sleeping"),
    ("/pause?clear_cache=false", "paused",   "paused",   "sleeping",    "drowsy",   "sleeping"),
    ("/resume",                  "running",  "running",  "sleepwalking","-",        "sleepwalking"),
    ("/wake_up",                 "running",  "running",  "running",     "running",  "running"),
    ("/wake_up?tags=weights",    "running",  "running",  "drowsy",      "drowsy",   "-"),
    ("/wake_up?tags=kv_cache",   "running",  "running",  "-",           "running",  "-"),
    ("/wake_up?tags=scheduling", "running",  "running",  "sleeping",    "drowsy",   "sleepwalking"),
    ("/wake_up?tags=nonsense",   "running",  "running",  "sleeping",    "drowsy",   "sleepwalking"),
    ("/sleep?level=0",           "paused",   "paused",   "sleeping",    "drowsy",   "sleeping"),
    ("/sleep?level=1",           "sleeping", "sleeping", "sleeping",    "sleeping", "sleeping"),
    ("/sleep?level=2",           "sleeping", "sleeping", "sleeping",    "sleeping", "sleeping"),
    ("/start_weight_update",     "running",  "paused",   "sleeping",    "drowsy",   "sleepwalking"),
)
# fmt: on
# Request -> where vLLM decides what comes of it.
PLACES: Mapping[str, str] = {
    "/pause": f"{CORE}:2061",
    "/pause?mode=wait": f"{CORE}:2061",
    "/pause?mode=keep": f"{CORE}:2061",
    "/pause?clear_cache=false": f"{CORE}:2061",
    "/resume": f"{CORE}:951",
    "/wake_up": f"{CORE}:1011",
    "/wake_up?tags=weights": f"{EXECUTOR}:394",
    "/wake_up?tags=kv_cache": f"{EXECUTOR}:394",
    "/wake_up?tags=scheduling": f"{CORE}:1007",
    "/wake_up?tags=nonsense": f"{EXECUTOR}:400",
    "/sleep?level=0": f"{CORE}:975",
    "/sleep?level=1": f"{CORE}:959",
    "/sleep?level=2": f"{CORE}:959",
    "/start_weight_update": f"{CORE}:1073",
}


def _cell(before: str, request: str, after: str) -> Check:
    @proves("facts 1.2", PLACES[request])
    async def pause(make: EngineMaker) -> None:
        async with make() as engine:
            await converse(engine, [Step(f"POST {path}") for path in STATES[before].reach])
            await converse(engine, [Step(f"POST {request}")])
            try:
                await _is(engine, STATES[after])
            except AssertionError as error:
                raise AssertionError(f"expected {after} after {before}: {error}") from error

    return pause


async def _is(engine: EngineUnderTest, state: State) -> None:
    """Require a state; finding out which memory is asleep wakes it up."""
    await converse(
        engine,
        [
            Step("GET /is_paused", says=f'{{"is_paused":{_json(state.paused)}}}'),
            Step("GET /is_sleeping", says=f'{{"is_sleeping":{_json(state.sleeping)}}}'),
            Step("POST /resume"),
            Step("GET /is_sleeping", says=_json(bool(state.asleep))),
        ],
    )
    # Waking one tag leaves the engine asleep exactly if another one is.
    left = "sleeping" if "weights" in state.asleep else "awake"
    await converse(engine, [Step("POST /wake_up?tags=kv_cache", says=f'"status":"{left}"')])


def _json(value: bool) -> str:
    return "true" if value else "false"


def _cells() -> Iterator[tuple[str, Check]]:
    for request, *cells in TABLE:
        for before, after in zip(STATES, cells, strict=True):
            if after != "-":
                yield f"pause[{before}-{request[1:]}]", _cell(before, request, after)


CELLS: Mapping[str, Check] = dict(_cells())
