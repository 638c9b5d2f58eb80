"""The routes of a weight push: session, version, checksums, pause and resume.

Source: vLLM 0.32, ``entrypoints/rl/online/api_router.py``; the signatures are its own, because
they decide what is a 400.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, HTTPException, Query, Request
from fastapi.responses import JSONResponse

from fakes.engine.core import EngineCore
from fakes.engine.generation import PauseMode
from fakes.engine.metrics import WeightOperations

router = APIRouter()


def core_of(request: Request) -> EngineCore:
    """Return the engine core that this request's app serves."""
    core: EngineCore = request.app.state.core
    return core


def operations_of(request: Request) -> WeightOperations:
    """Return the gauge that this request's app serves."""
    operations: WeightOperations = request.app.state.operations
    return operations


async def read_json(request: Request, invalid: str) -> dict[str, Any]:
    """Return the JSON object that a request carries, whatever its content type.

    Raises:
        HTTPException: 400; ``invalid`` is the text for what is not JSON, with ``{error}`` in it.
    """
    try:
        body = await request.json()
    except json.JSONDecodeError as error:
        raise HTTPException(400, invalid.format(error=error)) from error
    if not isinstance(body, dict):
        raise HTTPException(400, "Request body must be a JSON object")
    return body


@router.post("/pause")
async def pause(
    request: Request,
    mode: Annotated[PauseMode, Query()] = "abort",
    clear_cache: Annotated[bool, Query()] = True,
) -> JSONResponse:
    try:
        await core_of(request).pause(mode, clear_cache=clear_cache)
    except Exception as error:
        return JSONResponse({"error": f"Failed to pause generation: {error}"}, 500)
    return JSONResponse({"status": "paused"})


@router.post("/resume")
async def resume(request: Request) -> JSONResponse:
    try:
        await core_of(request).resume()
    except Exception as error:
        return JSONResponse({"error": f"Failed to resume generation: {error}"}, 500)
    return JSONResponse({"status": "resumed"})


@router.get("/is_paused")
async def is_paused(request: Request) -> JSONResponse:
    try:
        paused = await core_of(request).is_paused()
    except Exception as error:
        return JSONResponse({"error": f"Failed to fetch pause status: {error}"}, 500)
    return JSONResponse({"is_paused": paused})


@router.post("/abort_requests")
async def abort_requests(request: Request) -> JSONResponse:
    body = await read_json(request, "Invalid JSON format")
    request_ids = body.get("request_ids") or None
    try:
        aborted = await core_of(request).abort(request_ids)
    except Exception as error:
        return JSONResponse({"error": f"Failed to abort requests: {error}"}, 500)
    named = aborted if request_ids is None else len(request_ids)
    return JSONResponse({"status": "aborted", "aborted": named})


@router.post("/init_weight_transfer_engine")
async def init_weight_transfer_engine(
    request: Request, init_info: Annotated[dict[str, Any], Body(embed=True)]
) -> JSONResponse:
    with operations_of(request).record("init"):
        await core_of(request).collective_rpc(
            "init_weight_transfer_engine", kwargs={"init_info": init_info}
        )
    return JSONResponse({"message": "Weight transfer initialized"})


@router.post("/shutdown_weight_transfer_engine")
async def shutdown_weight_transfer_engine(request: Request) -> JSONResponse:
    with operations_of(request).record("shutdown"):
        await core_of(request).collective_rpc("shutdown_weight_transfer_engine")
    return JSONResponse({"message": "Weight transfer shut down"})


@router.post("/start_weight_update")
async def start_weight_update(request: Request) -> JSONResponse:
    with operations_of(request).record("start"):
        await core_of(request).collective_rpc("start_weight_update")
    return JSONResponse({"message": "Weight update started"})


@router.post("/start_draft_weight_update")
async def start_draft_weight_update(request: Request) -> JSONResponse:
    with operations_of(request).record("start_draft"):
        await core_of(request).collective_rpc("start_draft_weight_update")
    return JSONResponse({"message": "Draft weight update started"})


@router.post("/update_weights")
async def update_weights(
    request: Request,
    update_info: Annotated[dict[str, Any] | list[dict[str, Any]], Body(embed=True)],
) -> JSONResponse:
    with operations_of(request).record("update"):
        await core_of(request).collective_rpc("update_weights", kwargs={"update_info": update_info})
    return JSONResponse({"message": "Weights updated"})


@router.post("/finish_weight_update")
async def finish_weight_update(
    request: Request, weight_version: Annotated[str | None, Body(embed=True)] = None
) -> JSONResponse:
    with operations_of(request).record("finish"):
        await core_of(request).finish_weight_update(weight_version)
    return JSONResponse({"message": "Weight update finished"})


@router.post("/update_weight_version")
async def update_weight_version(
    request: Request, new_version: Annotated[str, Body(embed=True)]
) -> JSONResponse:
    await core_of(request).set_version(new_version)
    return JSONResponse({"success": True, "new_version": new_version})


@router.get("/weight_info")
async def weight_info(request: Request) -> JSONResponse:
    return JSONResponse({"weight_version": await core_of(request).get_version()})


@router.post("/weight_checker")
async def weight_checker(
    request: Request,
    action: Annotated[Literal["checksum", "reset", "compare"], Body(embed=True)],
    baseline: Annotated[dict[str, str] | None, Body(embed=True)] = None,
) -> JSONResponse:
    core = core_of(request)
    if action == "reset":
        await core.collective_rpc("reset_weights")
        return JSONResponse({"status": "reset"})
    if action == "compare" and baseline is None:
        raise HTTPException(400, "action='compare' requires a 'baseline' object")
    checksums: dict[str, str] = {}
    for worker_checksums in await core.compute_weight_checksums():
        if duplicates := checksums.keys() & worker_checksums.keys():
            raise HTTPException(500, f"Duplicate weight checksum keys: {sorted(duplicates)}")
        checksums.update(worker_checksums)
    if action == "checksum":
        return JSONResponse({"checksums": checksums})
    assert baseline is not None
    keys = checksums.keys() | baseline.keys()
    mismatches = sorted(key for key in keys if checksums.get(key) != baseline.get(key))
    return JSONResponse({"match": not mismatches, "mismatches": mismatches})


@router.get("/get_world_size")
async def get_world_size(request: Request, include_dp: bool = Query(True)) -> JSONResponse:
    return JSONResponse({"world_size": len(core_of(request).executor.threads)})
