"""The session of one worker, whole: what every request does in every state.

`TABLE` is the per-worker transition table of facts 1.2 (vLLM 0.32, ``v1/worker/gpu_worker.py``),
cell by cell; each is a rule of its own, ``transition[FU-finish]``.

After the request a worker must look like the state that its cell names: whether a session is
open, and whether the target model's weights are readable or on the meta device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.engine.contract import (
    ALREADY_ACTIVE,
    BUSY,
    DEAD,
    FINISH,
    NO_DRAFT,
    NO_MATCHING_START,
    NOT_CONFIGURED,
    NOT_STARTED,
    ON_META,
    START,
    START_DRAFT,
    EngineMaker,
    EngineUnderTest,
    Json,
    Step,
    converse,
    expect,
    refused,
    said,
    update,
)
from conformance.engine.rules import Check, Need, proves

FAILED = "Worker failed with error '"
SOURCE = "vllm/v1/worker/gpu_worker.py"


@dataclass(frozen=True)
class State:
    """One state of the table, how to get there, and what can be seen of it.

    Attributes:
        reach: the requests that lead there from a fresh engine, after init.
        session: what a start is answered then: opened, refused as active, or not configured.
        on_meta: whether the target model's weights are unreadable.
        configured: whether there is weight transfer at all.
        draft: whether there is a draft model.
        failing: the RPC that fails on the way.
    """

    reach: Callable[[EngineUnderTest], Sequence[Step]]
    session: Step = START
    on_meta: bool = False
    configured: bool = True
    draft: bool = False
    failing: str | None = None


def _refused_update(engine: EngineUnderTest) -> Step:
    return update(engine, on=[False], status=500, says=FAILED)


def _failed(request: str) -> Step:
    return Step(request, 500, FAILED)


ACTIVE = refused(START.request, ALREADY_ACTIVE)
UNCONFIGURED = refused(START.request, NOT_CONFIGURED)
START_FAILED = _failed(START.request)
FINISH_FAILED = _failed(FINISH.request)

STATES: Mapping[str, State] = {
    "N": State(lambda _: [], UNCONFIGURED, configured=False),
    "I": State(lambda _: []),
    "O": State(lambda _: [START], ACTIVE, on_meta=True),
    "Od": State(lambda _: [START_DRAFT], ACTIVE, draft=True),
    "FU": State(lambda engine: [START, _refused_update(engine)], on_meta=True),
    "FS": State(lambda _: [START_FAILED], failing="start_weight_update"),
    "FF": State(
        lambda _: [START, FINISH_FAILED], ACTIVE, on_meta=True, failing="finish_weight_update"
    ),
}


@dataclass(frozen=True)
class Request:
    """One row: what is sent, and where vLLM decides what comes of it.

    Attributes:
        line: of `SOURCE`, unless it names its file.
        send: the request.
        failing: the RPC that is to fail.
        draft: whether there is a draft model, whatever the state.
        needs: what it needs beyond what its columns do.
    """

    line: str
    send: Callable[[EngineUnderTest], tuple[str, Json]]
    failing: str | None = None
    draft: bool = False
    needs: tuple[Need, ...] = ()


def _bare(request: str, body: Json = None) -> Callable[[EngineUnderTest], tuple[str, Json]]:
    return lambda _: (request, body)


def _updating(engine: EngineUnderTest) -> tuple[str, Json]:
    return "POST /update_weights", {"update_info": engine.empty_update}


def _updating_badly(engine: EngineUnderTest) -> tuple[str, Json]:
    return "POST /update_weights", {"update_info": engine.refused_update}


INIT, DRAFT = "POST /init_weight_transfer_engine", START_DRAFT.request

REQUESTS: Mapping[str, Request] = {
    "init": Request("1484-1496", _bare(INIT)),  # the maker's own init, see `_send`
    "init_raises": Request("1494", _bare(INIT, {"init_info": {"nope": 1}})),
    "shutdown": Request("1498-1505", _bare("POST /shutdown_weight_transfer_engine")),
    "start": Request("1524-1549", _bare(START.request)),
    "start_draft": Request("1524-1549", _bare(DRAFT), draft=True),
    "start_draft_without": Request("1151-1155", _bare(DRAFT)),
    "update": Request("1563-1586", _updating),
    "update_raises": Request("1582-1585", _updating_badly),
    "finish": Request("1588-1600", _bare(FINISH.request)),
    "finish_raises": Request("1597-1600", _bare(FINISH.request), "finish_weight_update"),
    "finish_lora_raises": Request("1602-1604", _bare(FINISH.request), "reset_lora_state"),
    "checksum": Request("375-378", _bare("POST /weight_checker", {"action": "checksum"})),
    "publish": Request(
        "vllm/v1/engine/core.py:1082", _bare("POST /update_weight_version", {"new_version": "v"})
    ),
    "version": Request("vllm/v1/engine/core.py:1085", _bare("GET /weight_info")),
    "pause": Request("vllm/v1/engine/core.py:2061", _bare("POST /pause")),
    "resume": Request("vllm/v1/engine/core.py:951", _bare("POST /resume")),
    "completion": Request(
        "vllm/v1/engine/core.py:1508",
        _bare("POST /v1/completions", {"prompt": "x"}),
        needs=(Need.SERVES,),
    ),
}

ANSWERS: Mapping[str, tuple[int, str]] = {
    "ok": (200, ""),
    "C": (500, FAILED + NOT_CONFIGURED),
    "R": (500, FAILED + ALREADY_ACTIVE),
    "B": (500, FAILED + NOT_STARTED),
    "M": (500, FAILED + NO_MATCHING_START),
    "busy": (500, FAILED + BUSY),
    "bad": (500, FAILED + "Invalid init_info for "),
    "nodraft": (500, FAILED + NO_DRAFT),
    "meta": (500, ON_META),
    "fails": (500, FAILED),  # with none of the texts above
    "dead": (500, DEAD),
}

# A cell is the answer, and the state that the worker then looks like where it is another. A draft
# session whose update failed looks idle: its layers are armed, but they are the draft model's.
# fmt: off
TABLE: tuple[tuple[str, ...], ...] = (
    # request                N     I          O           Od          FU       FS       FF
    ("init",                 "C",  "ok",      "ok",       "ok",       "ok",    "ok",    "ok"),
    ("init_raises",          "C",  "bad",     "bad",      "bad",      "bad",   "bad",   "bad"),
    ("shutdown",             "ok", "ok",      "busy",     "busy",     "ok",    "ok",    "busy"),
    ("start",                "C",  "ok>O",    "R",        "R",        "ok>O",  "ok>O",  "R"),
    ("start_draft",          "C",  "ok>Od",   "R",        "R",        "ok>O",  "ok>Od", "R"),
    ("start_draft_without",  "C",  "nodraft", "R",        "-",        "nodraft", "nodraft", "R"),
    ("update",               "C",  "B",       "ok",       "ok",       "B",     "B",     "ok"),
    ("update_raises",        "C",  "B",       "fails>FU", "fails>I",  "B",     "B",     "fails>FU"),
    ("finish",               "C",  "M",       "ok>I",     "ok>I",     "M",     "M",     "ok>I"),
    ("finish_raises",        "C",  "M",       "fails>FF", "fails>Od", "M",     "M",     "-"),
    ("finish_lora_raises",   "C",  "M",       "fails>I",  "ok>I",     "M",     "M",     "fails>I"),
    ("checksum",             "ok", "ok",      "meta",     "ok",       "meta",  "ok",    "meta"),
    ("publish",              "ok", "ok",      "ok",       "ok",       "ok",    "ok",    "ok"),
    ("version",              "ok", "ok",      "ok",       "ok",       "ok",    "ok",    "ok"),
    ("pause",                "ok", "ok",      "ok",       "ok",       "ok",    "ok",    "ok"),
    ("resume",               "ok", "ok",      "ok",       "ok",       "ok",    "ok",    "ok"),
    ("completion",           "ok", "ok",      "dead",     "-",        "dead",  "ok",    "dead"),
)
# fmt: on


def _cell(state_name: str, request_name: str, cell: str) -> Check:
    state, request = STATES[state_name], REQUESTS[request_name]
    answer, _, after = cell.partition(">")
    failing = {rpc: 0 for rpc in (state.failing, request.failing) if rpc is not None}
    draft = state.configured and (state.draft or request.draft)
    needs = {*request.needs, *([Need.FAILS] if failing else [])}
    needs |= set() if state.configured else {Need.UNCONFIGURED}
    needs |= {Need.DRAFT} if draft else set()
    place = request.line if request.line.startswith("vllm/") else f"{SOURCE}:{request.line}"

    @proves("facts 1.2", place, needs=needs)
    async def transition(make: EngineMaker) -> None:
        async with make(configured=state.configured, draft=draft, failing=failing) as engine:
            if state.configured:
                expect(await engine.init(), 200, told="init")
            await converse(engine, state.reach(engine))
            await _send(engine, request_name, request, answer)
            if answer != "dead":
                await _looks_like(engine, after or state_name)

    return transition


async def _send(engine: EngineUnderTest, name: str, request: Request, wanted: str) -> None:
    path, body = request.send(engine)
    status, says = ANSWERS[wanted]
    if name == "init" and wanted == "ok":
        answer = await engine.init()  # with what this engine's backend takes
    else:
        body = {"init_info": {}} if name == "init" else body
        method, route = path.split(" ", 1)
        answer = await engine.client.request(method, route, json=body)
    expect(answer, status, says, told=path)
    refusals = [ANSWERS[letter][1] for letter in "CRBM"]
    if wanted == "fails" and any(refusal in said(answer) for refusal in refusals):
        raise AssertionError(f"{path}: expected what failed to say why, found {said(answer)!r}.")


async def _looks_like(engine: EngineUnderTest, name: str) -> None:
    """Require what can be seen of a state; this ends it, as seeing a session means to start one."""
    state = STATES[name]
    checksum = {"action": "checksum"}
    status, says = (500, ON_META) if state.on_meta else (200, "")
    try:
        await converse(engine, [Step("POST /weight_checker", status, says, checksum)])
        await converse(engine, [state.session])
    except AssertionError as error:
        raise AssertionError(
            f"expected the worker to look like {name} afterwards: {error}"
        ) from error


def _cells() -> Iterator[tuple[str, Check]]:
    for request, *cells in TABLE:
        for state, cell in zip(STATES, cells, strict=True):
            if cell != "-":
                yield f"transition[{state}-{request}]", _cell(state, request, cell)


CELLS: Mapping[str, Check] = dict(_cells())
