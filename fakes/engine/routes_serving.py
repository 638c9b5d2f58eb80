"""The routes around a push: health, metrics, caches, sleep, RPC and completions.

Source: vLLM 0.32, ``entrypoints/serve/dev``, ``entrypoints/serve/instrumentator`` and
``entrypoints/openai/completion``.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, HTTPException, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from fakes.engine.generation import Completion, PauseMode
from fakes.engine.routes_weights import core_of, operations_of, read_json

VERSION = "0.32.0"
MODEL_NAME = "fake"

router = APIRouter()
T = TypeVar("T")


@router.get("/health")
async def health(request: Request) -> Response:
    return Response(status_code=503 if core_of(request).dead else 200)


@router.get("/metrics")
async def metrics(request: Request) -> PlainTextResponse:
    return PlainTextResponse(operations_of(request).render())


@router.get("/version")
async def version() -> JSONResponse:
    return JSONResponse({"version": VERSION})


@router.get("/server_info")
async def server_info(request: Request) -> JSONResponse:
    workers = len(core_of(request).executor.threads)
    config = f"model={MODEL_NAME!r}, tensor_parallel_size={workers}"
    return JSONResponse({"vllm_config": config, "vllm_env": {}, "system_env": {}})


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(
    request: Request,
    reset_running_requests: bool = Query(default=False),
    reset_external: bool = Query(default=False),
) -> JSONResponse:
    success = await core_of(request).reset_prefix_cache(
        reset_running_requests=reset_running_requests
    )
    return JSONResponse({"success": success})


@router.post("/reset_mm_cache")
async def reset_mm_cache(request: Request) -> Response:
    await core_of(request).reset_worker_cache("mm")
    return Response(status_code=200)


@router.post("/reset_encoder_cache")
async def reset_encoder_cache(request: Request) -> Response:
    await core_of(request).reset_worker_cache("encoder")
    return Response(status_code=200)


@router.post("/release_kv_cache_memory")
async def release_kv_cache_memory(request: Request) -> JSONResponse:
    await core_of(request).release_kv_cache_memory()
    return JSONResponse({"status": "kv_cache_released"})


@router.post("/sleep")
async def sleep(
    request: Request,
    level: Annotated[int, Query(ge=0, le=2)] = 1,
    mode: Annotated[PauseMode, Query()] = "abort",
) -> JSONResponse:
    await core_of(request).sleep(level, mode)
    return JSONResponse({"status": "sleeping", "level": level})


@router.post("/wake_up")
async def wake_up(request: Request) -> JSONResponse:
    tags = request.query_params.getlist("tags") or None
    awake = await core_of(request).wake_up(tags)
    return JSONResponse({"status": "awake" if awake else "sleeping", "tags": tags})


@router.get("/is_sleeping")
async def is_sleeping(request: Request) -> JSONResponse:
    return JSONResponse({"is_sleeping": await core_of(request).is_sleeping()})


@router.post("/collective_rpc")
async def collective_rpc(request: Request) -> JSONResponse:
    body = await read_json(request, "JSON decode error: {error}")
    method = body.get("method")
    if method is None:
        raise HTTPException(400, "Missing 'method' in request body")
    results = await core_of(request).collective_rpc(
        method,
        timeout_s=body.get("timeout"),
        args=tuple(body.get("args", [])),
        kwargs=body.get("kwargs", {}),
    )
    return JSONResponse({"results": [_plain(result) for result in results]})


def _plain(result: Any) -> Any:
    return result if result is None or isinstance(result, dict | list) else str(result)


@router.post("/v1/completions")
async def completions(
    request: Request,
    prompt: Annotated[str | list[int], Body()],
    max_tokens: Annotated[int, Body(ge=1)] = 16,
) -> Response:
    core = core_of(request)
    completion = Completion(
        request_id=f"cmpl-{uuid.uuid4().hex}",
        prompt=prompt if isinstance(prompt, str) else json.dumps(prompt),
        max_tokens=max_tokens,
        finished=asyncio.get_running_loop().create_future(),
    )
    reason = await _unless_disconnected(request, core.generate(completion))
    if reason is None:
        await core.abort([completion.request_id])
        return Response(status_code=499)  # nobody reads it
    choice = {
        "index": 0,
        "text": " ".join(map(str, completion.tokens)),
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": None,
        "token_ids": completion.tokens,
    }
    return JSONResponse(
        {
            "id": completion.request_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": MODEL_NAME,
            "choices": [choice],
            "usage": {"completion_tokens": len(completion.tokens)},
        }
    )


async def _unless_disconnected(request: Request, run: Coroutine[Any, Any, T]) -> T | None:
    """Return the result, or ``None`` when the client has gone first; vLLM then aborts, too."""
    working = asyncio.create_task(run)
    leaving = asyncio.create_task(_disconnected(request))
    await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    if working.done():
        return working.result()
    working.cancel()
    return None


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
