"""Puts one engine together: workers, executor, core, routes and gate.

Several engines can live in one process: nothing here is global but the routes, which hold no state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route

from fakes.data_plane.receivers import WorkerTransfer
from fakes.engine import errors, routes_serving, routes_weights
from fakes.engine.core import EngineCore
from fakes.engine.executor import Executor, WorkerThread
from fakes.engine.gate import Gate
from fakes.engine.layers import Model
from fakes.engine.metrics import WeightOperations
from fakes.engine.profiles import profile_named
from fakes.engine.routes_weights import core_of
from fakes.engine.worker import Worker
from fakes.model_spec import SHAPES
from harness.contracts import Injector, Recorder

TransferMaker = Callable[[int], WorkerTransfer | None]  # worker's rank -> its end of the data plane

ASKED_MOST = frozenset({"/is_paused", "/weight_info", "/update_weights", "/v1/completions"})

harness_router = APIRouter()


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What distinguishes one engine from another.

    Attributes:
        workers: tensor-parallel size; a divisor of the model's shards (1, 2 or 4).
        seed: of the weights that the engine holds at the start (step 0 of `model_spec`).
        draft: whether there is a draft model.
        backend: ``nccl``, ``ipc``, or ``None`` for an engine without weight transfer.
        profile: name of the session rules.
        model: a key of `fakes.model_spec.SHAPES`.
        token_interval_s: time between two tokens of a completion, in seconds.
    """

    workers: int = 1
    seed: int = 7
    draft: bool = False
    backend: str | None = "nccl"
    profile: str = "vllm-0.32"
    model: str = "fake"
    token_interval_s: float = 0.01


@dataclass(frozen=True)
class Engine:
    """One engine, ready to be served: ``gate`` is the ASGI app."""

    core: EngineCore
    gate: Gate


def build_engine(
    config: EngineConfig,
    *,
    make_transfer: TransferMaker,
    injector: Injector,
    record: Recorder,
    on_death: Callable[[], None],
    harness: bool = False,
) -> Engine:
    """Build one engine.

    Args:
        config: the engine's shape.
        make_transfer: gives each worker its end of the data plane.
        injector: the faults of this engine's process.
        record: the run's journal.
        on_death: called when the core dies; a process leaves then.
        harness: whether to serve ``/harness/state``.
    """
    profile = profile_named(config.profile)
    model = partial(Model, seed=config.seed, world_size=config.workers, shape=SHAPES[config.model])
    workers = [
        Worker(
            rank,
            model=model(rank=rank),
            draft=model(rank=rank, draft=True) if config.draft else None,
            transfer=make_transfer(rank),
            backend=config.backend,
            profile=profile,
            injector=injector,
            record=record,
        )
        for rank in range(config.workers)
    ]
    core = EngineCore(
        Executor(workers),
        record=record,
        token_interval_s=config.token_interval_s,
        on_death=on_death,
    )
    app = _app(core, harness=harness)

    async def session_of() -> str:
        return "draft" if any(w.active and w.is_draft for w in workers) else "target"

    gate = Gate(app, session_of, injector=injector, record=record)
    app.state.gate = gate
    return Engine(core, gate)


def _app(core: EngineCore, *, harness: bool) -> FastAPI:
    routes = [*HARNESS_ROUTES, *ROUTES] if harness else [*ROUTES]
    app = FastAPI(routes=routes, openapi_url=None)
    errors.install(app)
    app.state.core, app.state.operations = core, WeightOperations()
    return app


def _plain(route: BaseRoute) -> BaseRoute:
    """Return Starlette's route for a function that takes the request alone: it has nothing that
    FastAPI would parse or validate, which costs more than everything else about such a request."""
    if not isinstance(route, APIRoute) or list(signature(route.endpoint).parameters) != ["request"]:
        return route
    plain = Route(route.path, route.endpoint)
    plain.methods = route.methods  # Starlette would add HEAD to GET
    return plain


@harness_router.get("/harness/state")
async def state(request: Request) -> JSONResponse:
    """What the harness sees of an engine: it skips the queue and never blocks."""
    core, gate = core_of(request), request.app.state.gate
    checksums: dict[str, str] | None = None
    draft_checksums: dict[str, str] | None = None
    if request.query_params.get("weights") != "no":  # the monitor asks often, and not for them
        # NotImplementedError is torch's word for reading a parameter that is on meta.
        with contextlib.suppress(NotImplementedError):
            both = core.weights.checksums(), core.weights.checksums(draft=True)
            checksums, draft_checksums = both
    return JSONResponse(
        {
            "version": core.version,
            "paused": core.scheduler.paused,
            "sleeping": core.sleeping,
            "dead": core.dead,
            "in_flight": list(gate.in_flight.values()),
            "workers": [_worker_state(thread) for thread in core.executor.threads],
            "checksums": checksums,
            "draft_checksums": draft_checksums,
        }
    )


def _worker_state(thread: WorkerThread) -> Mapping[str, Any]:
    worker = thread.worker
    return {
        "active": worker.active,
        "is_draft": worker.is_draft,
        "initialized": worker.initialized,
        "armed": [name for model in worker.models for name in model.armed],
        "meta": any(model.is_meta for model in worker.models),
        "backlog": thread.backlog,
        "busy": thread.busy,
        "pending": worker.pending(),
    }


# Built at import and shared: a route takes its engine from the request's app. They are tried one by
# one, so what is asked most comes first.
HARNESS_ROUTES = tuple(map(_plain, harness_router.routes))
ROUTES = sorted(
    map(_plain, (*routes_weights.router.routes, *routes_serving.router.routes)),
    key=lambda route: getattr(route, "path", None) not in ASKED_MOST,
)
