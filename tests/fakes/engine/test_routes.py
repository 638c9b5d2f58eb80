"""Routes that skip FastAPI's parameters answer as the others do."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fake_engines import build_in_process
from fastapi.routing import APIRoute

from fakes.engine import routes_serving, routes_weights
from fakes.engine.app import HARNESS_ROUTES, ROUTES, harness_router

DECLARED = [
    *routes_weights.router.routes,
    *routes_serving.router.routes,
    *harness_router.routes,
]


def test_every_route_is_served_as_declared() -> None:
    """Same paths and methods; Starlette's own default would add HEAD to every GET."""
    served = {(r.path, *sorted(r.methods)) for r in (*ROUTES, *HARNESS_ROUTES)}
    declared = {(r.path, *sorted(r.methods)) for r in DECLARED}
    assert served == declared


@pytest.mark.parametrize("path", ["/is_paused", "/get_world_size"])
def test_a_wrong_method_is_refused_alike(path: str) -> None:
    """A route of either kind answers HEAD with 405, and says what it allows."""
    assert isinstance(next(r for r in ROUTES if r.path == path), APIRoute) == (
        path == "/get_world_size"
    )

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(build_in_process().gate)
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            return await client.head(path)

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
