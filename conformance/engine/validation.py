"""Requests that the front end refuses: exact bodies, and no effect on the session.

Source: vLLM 0.32, ``entrypoints/rl/online/api_router.py`` and
``entrypoints/serve/exception_handling``.
"""

from __future__ import annotations

from conformance.engine.contract import FINISH, START, EngineMaker, Json, Step, converse

MISSING_INIT = {
    "error": {
        "message": "1 validation error:\n  {'type': 'missing', 'loc': 'body.init_info', "
        "'msg': 'Field required', 'input': 'None'}",
        "type": "Bad Request",
        "param": "body.init_info",
        "code": 400,
    }
}

# fmt: off
REFUSED: tuple[tuple[str, Json, str], ...] = (
    # request                               body                             text
    ("POST /init_weight_transfer_engine",   {"init_info": None},             "body.init_info"),
    ("POST /init_weight_transfer_engine",   {"init_info": [1]},              "body.init_info"),
    ("POST /update_weights",                None,                            "Field required"),
    ("POST /update_weights",                {"update_info": "x"},            "2 validation errors"),
    ("POST /update_weights",                {"update_info": ["x"]},          "validation error"),
    ("POST /finish_weight_update",          {"weight_version": 7},           "valid string"),
    ("POST /update_weight_version",         {},                              "body.new_version"),
    ("POST /update_weight_version",         {"new_version": 8},              "valid string"),
    ("POST /pause?mode=zzz",                None,                            "query.mode"),
    ("POST /sleep?level=3",                 None,                            "query.level"),
    ("POST /collective_rpc",                {},                              "Missing 'method'"),
    ("POST /collective_rpc",                [1],                             "a JSON object"),
    ("POST /collective_rpc",                None,                            "JSON decode error"),
    ("POST /abort_requests",                None,                            "Invalid JSON format"),
    ("POST /weight_checker",                {"action": "compare"},           "a 'baseline' object"),
    ("POST /weight_checker",                {"action": "nope"},              "body.action"),
)
# fmt: on


async def bad_requests_are_400(make: EngineMaker) -> None:
    """Each malformed request is a 400 that says what is wrong."""
    async with make() as engine:
        await converse(engine, [Step(request, 400, text, body) for request, body, text in REFUSED])


async def bad_requests_leave_the_session(make: EngineMaker) -> None:
    """A 400 never reaches a worker: an open session is open still."""
    async with make() as engine:
        for request, body, text in REFUSED:
            await converse(engine, [START, Step(request, 400, text, body), FINISH])


async def the_body_of_a_400(make: EngineMaker) -> None:
    """The whole body where a field is missing, and where JSON came without its content type."""
    async with make() as engine:
        path = "/init_weight_transfer_engine"
        for content in (b"", b'{"init_info": {}}'):
            answer = await engine.client.post(path, content=content)
            assert answer.status_code == 400, f"expected 400, found {answer.status_code}"
            assert answer.json() == MISSING_INIT or content, f"found {answer.json()}"


async def unknown_routes(make: EngineMaker) -> None:
    """An unknown path is a 404 and a wrong method a 405, in Starlette's own words."""
    async with make() as engine:
        await converse(
            engine,
            [
                Step("GET /nope", 404, '{"detail":"Not Found"}'),
                Step("GET /pause", 405, '{"detail":"Method Not Allowed"}'),
            ],
        )


async def start_ignores_its_body(make: EngineMaker) -> None:
    """Start and pause take no body: any JSON is ignored."""
    async with make() as engine:
        await converse(
            engine,
            [
                Step("POST /start_weight_update", body={"draft": True}),
                FINISH,
                Step("POST /pause", body={"mode": "zzz"}),
            ],
        )


CHECKS = (
    bad_requests_are_400,
    bad_requests_leave_the_session,
    the_body_of_a_400,
    unknown_routes,
    start_ignores_its_body,
)
