"""Requests that the front end refuses: exact bodies, and no effect on the session.

Source: vLLM 0.32, ``entrypoints/rl/online/api_router.py`` and
``entrypoints/serve/exception_handling``.
"""

from __future__ import annotations

from collections.abc import Mapping

from conformance.engine.contract import FINISH, START, EngineMaker, Json, Step, converse
from conformance.engine.rules import Check, proves

HANDLER = "vllm/entrypoints/serve/exception_handling/handlers/validation.py"
MISSING_INIT = {
    "error": {
        "message": "1 validation error:\n  {'type': 'missing', 'loc': 'body.init_info', "
        "'msg': 'Field required', 'input': 'None'}",
        "type": "Bad Request",
        "param": "body.init_info",
        "code": 400,
    }
}

INIT = "init_weight_transfer_engine"
NUMBERS = {"action": "compare", "baseline": {"a": 1}}
# fmt: off
# what is wrong -> route, body, and a part of the text
REFUSED: Mapping[str, tuple[str, Json, str]] = {
    "init_info-missing":    (INIT,                    {},                    "Field required"),
    "init_info-null":       (INIT,                    {"init_info": None},   "body.init_info"),
    "init_info-a-list":     (INIT,                    {"init_info": [1]},    "body.init_info"),
    "update_info-missing":  ("update_weights",        None,                  "Field required"),
    "update_info-a-string": ("update_weights",        {"update_info": "x"},  "2 validation errors"),
    "update_info-of-text":  ("update_weights",        {"update_info": ["x"]}, "validation error"),
    "version-a-number":     ("finish_weight_update",  {"weight_version": 7}, "valid string"),
    "new_version-missing":  ("update_weight_version", {},                    "body.new_version"),
    "new_version-misspelt": ("update_weight_version", {"version": "7"},      "Field required"),
    "new_version-a-number": ("update_weight_version", {"new_version": 8},    "valid string"),
    "pause-mode":           ("pause?mode=zzz",        None,                  "query.mode"),
    "pause-clear_cache":    ("pause?clear_cache=x",   None,                  "query.clear_cache"),
    "sleep-level":          ("sleep?level=3",         None,                  "query.level"),
    "sleep-mode":           ("sleep?mode=zzz",        None,                  "query.mode"),
    "rpc-without-method":   ("collective_rpc",        {},                    "Missing 'method'"),
    "rpc-a-list":           ("collective_rpc",        [1],                   "a JSON object"),
    "rpc-no-json":          ("collective_rpc",        None,                  "JSON decode error"),
    "abort-no-json":        ("abort_requests",        None,                  "Invalid JSON format"),
    "abort-a-list":         ("abort_requests",        [1],                   "a JSON object"),
    "no-baseline":          ("weight_checker",        {"action": "compare"}, "a 'baseline' object"),
    "baseline-of-numbers":  ("weight_checker",        NUMBERS,               "body.baseline"),
    "checker-action":       ("weight_checker",        {"action": "nope"},    "body.action"),
}
# fmt: on
VECTORS = {"version-a-number": 4, "update_info-a-string": 5, "pause-mode": 12}


def _refused(what: str) -> Check:
    route, body, text = REFUSED[what]
    vectors = [f"facts 8.2 vector {VECTORS[what]}"] if what in VECTORS else []

    @proves("facts 8", *vectors, HANDLER)
    async def refused(make: EngineMaker) -> None:
        """A malformed request is a 400 that says why, and leaves an open session alone."""
        async with make() as engine:
            await converse(engine, [START, Step(f"POST /{route}", 400, text, body), FINISH])

    return refused


CELLS: Mapping[str, Check] = {f"refused[{what}]": _refused(what) for what in REFUSED}


@proves("facts 4", "vllm/entrypoints/serve/exception_handling/utils.py:7")
async def errors_are_sanitised(make: EngineMaker) -> None:
    """File paths and addresses never leave the server, whatever error carries them."""
    # fmt: off
    told = (
        ("/opt/app/secret.py",          "has no attribute '<path>'"),
        ("x/tmp/a/b",                   "has no attribute 'x<path>'"),
        ("<f at 0x7f00>",               "has no attribute '<f>'"),
        ("get_supported_tasks.x",       "has no attribute 'get_supported_tasks.x'"),
    )
    # fmt: on
    async with make() as engine:
        for method, says in told:
            await converse(engine, [Step("POST /collective_rpc", 500, says, {"method": method})])


@proves("facts 8", HANDLER)
async def the_body_of_a_400(make: EngineMaker) -> None:
    """The whole body where a field is missing, and where JSON came without its content type."""
    async with make() as engine:
        path = f"/{INIT}"
        for content in (b"", b'{"init_info": {}}'):
            answer = await engine.client.post(path, content=content)
            assert answer.status_code == 400, f"expected 400, found {answer.status_code}"
            assert answer.json() == MISSING_INIT or content, f"found {answer.json()}"


@proves("facts 8", "vllm/entrypoints/launchers/app.py")
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


@proves("facts 8", "vllm/entrypoints/rl/online/api_router.py")
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
    errors_are_sanitised,
    the_body_of_a_400,
    unknown_routes,
    start_ignores_its_body,
)
