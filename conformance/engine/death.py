"""A dead core, and a stuck one: what still answers, and what ``/health`` says of it.

`DEAD_ROUTES` is a table of every route that asks the core; each is a rule, ``dead[weight_info]``.

Source: vLLM 0.32, ``v1/engine/async_llm.py`` (``check_health``), ``v1/engine/core_client.py`` and
``entrypoints/serve/instrumentator/health.py``.
"""

from __future__ import annotations

from conformance.engine.contract import (
    DEAD,
    START,
    EngineMaker,
    Json,
    Step,
    converse,
    expect,
    stuck,
    update,
)
from conformance.engine.rules import Check, Need, proves

CLIENT = "vllm/v1/engine/core_client.py:785"
HEALTH = "vllm/entrypoints/serve/instrumentator/health.py"
IN_FLIGHT = 'vllm:rl_weight_update_operations_in_flight{operation="update"} 1.0'

PAUSE_DEAD = f"Failed to pause generation: {DEAD}"
RESUME_DEAD = f"Failed to resume generation: {DEAD}"
IS_PAUSED_DEAD = f"Failed to fetch pause status: {DEAD}"
PROBE = {"method": "check_health"}

# fmt: off
# request, body -> status and a part of the text
DEAD_ROUTES: tuple[tuple[str, Json, int, str], ...] = (
    ("POST /init_weight_transfer_engine",      {"init_info": {}},       500, DEAD),
    ("POST /shutdown_weight_transfer_engine",  None,                    500, DEAD),
    ("POST /start_weight_update",              None,                    500, DEAD),
    ("POST /start_draft_weight_update",        None,                    500, DEAD),
    ("POST /update_weights",                   {"update_info": {}},     500, DEAD),
    ("POST /finish_weight_update",             None,                    500, DEAD),
    ("POST /update_weight_version",            {"new_version": "1"},    500, DEAD),
    ("GET /weight_info",                       None,                    500, DEAD),
    ("POST /weight_checker",                   {"action": "checksum"},  500, DEAD),
    ("POST /pause",                            None,                    500, PAUSE_DEAD),
    ("POST /resume",                           None,                    500, RESUME_DEAD),
    ("GET /is_paused",                         None,                    500, IS_PAUSED_DEAD),
    ("POST /sleep",                            None,                    500, DEAD),
    ("POST /wake_up",                          None,                    500, DEAD),
    ("GET /is_sleeping",                       None,                    500, DEAD),
    ("POST /reset_prefix_cache",               None,                    500, DEAD),
    ("POST /collective_rpc",                   PROBE,                   500, DEAD),
    ("POST /update_weights",                   {"update_info": "x"},    400, "2 validation errors"),
    ("GET /health",                            None,                    503, ""),
    ("GET /metrics",                           None,                    200, ""),
    ("GET /version",                           None,                    200, "version"),
    ("GET /get_world_size",                    None,                    200, '{"world_size":1}'),
)
# fmt: on


def _dead(request: str, body: Json, status: int, says: str) -> Check:
    @proves("facts 0", "facts 1.4", HEALTH if "health" in request else CLIENT, needs=[Need.DIES])
    async def dead(make: EngineMaker) -> None:
        async with make() as engine:
            await converse(engine, [Step("GET /health")])
            await engine.die()
            await converse(engine, [Step(request, status, says, body)])

    return dead


def _name(request: str, status: int) -> str:
    name = request.partition("/")[2]
    return f"dead[{name}-malformed]" if status == 400 else f"dead[{name}]"


CELLS: dict[str, Check] = {_name(row[0], row[2]): _dead(*row) for row in DEAD_ROUTES}


@proves("facts 0", "facts 6.10", HEALTH, needs=[Need.HANGS])
async def a_stuck_worker_is_healthy(make: EngineMaker) -> None:
    """While a worker hangs in an update, health, metrics, version and world size answer."""
    async with make(hanging={"update_weights": 0}) as engine:
        expect(await engine.init(), 200, told="init")
        await converse(engine, [START])
        async with stuck(engine, update(engine, status=200, says="Weights updated")):
            await converse(
                engine,
                [
                    Step("GET /version"),
                    Step("GET /get_world_size", says='{"world_size":1}'),
                    Step("GET /metrics", says=IN_FLIGHT),
                ],
            )


def _blocked(request: str, body: Json) -> Check:
    @proves("facts 0", "facts 6.10", "vllm/v1/engine/core.py:1687", needs=[Need.HANGS])
    async def blocked(make: EngineMaker) -> None:
        """Whatever asks the core queues behind the stuck RPC, and is answered once it ends."""
        async with make(hanging={"check_health": 0}) as engine:
            hangs = Step("POST /collective_rpc", body=PROBE)
            async with stuck(engine, hangs, Step(request, body=body)):
                await converse(engine, [Step("GET /version")])

    return blocked


# fmt: off
BLOCKED: tuple[tuple[str, Json], ...] = (
    ("POST /start_weight_update",   None),
    ("POST /update_weight_version", {"new_version": "1"}),
    ("GET /weight_info",            None),
    ("POST /weight_checker",        {"action": "checksum"}),
    ("POST /pause",                 None),
    ("POST /resume",                None),
    ("GET /is_paused",              None),
    ("GET /is_sleeping",            None),
    ("POST /reset_prefix_cache",    None),
)
# fmt: on
CELLS |= {f"blocked[{row[0].partition('/')[2]}]": _blocked(*row) for row in BLOCKED}
CHECKS = (a_stuck_worker_is_healthy,)
