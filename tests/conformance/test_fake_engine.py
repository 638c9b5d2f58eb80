"""The fake engine passes the checks of the real one, and broken fakes do not.

A canary breaks one rule of an engine by replacing a method of that one instance, which mypy cannot
follow: hence each ``type: ignore[method-assign]`` here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from fake_engines import OFFERS, as_process, in_process

from conformance.engine import CHECKS
from conformance.engine.rules import Need, not_run
from fakes.engine.app import Engine
from fakes.engine.layers import Layer
from fakes.engine.worker import Worker

OVER_LOOPBACK = (
    "sessions.finish_says_why",
    "replies.first_worker_fails",
    "layers.a_push_is_whole",
    "versions.finish_sets_it_without_an_update",
    "refused[update_info-a-string]",
    "pausing.keep_freezes_what_runs",
    "serving.serving_without_weights_is_fatal",
)


LEFT_OUT = not_run(CHECKS, OFFERS)


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in LEFT_OUT])
def test_in_process(name: str) -> None:
    """Every check passes on a fake engine."""
    asyncio.run(CHECKS[name](in_process()))


def test_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A fake is spared just the rules of a CPU's layers; they are printed."""
    with capsys.disabled():
        for name, needs in LEFT_OUT.items():
            print(f"\n{name}: not for fakes, needs {', '.join(need.value for need in needs)}")
    assert {need for needs in LEFT_OUT.values() for need in needs} == {Need.CPU_LAYERS}


@pytest.mark.processes
@pytest.mark.parametrize("name", OVER_LOOPBACK)
def test_over_loopback(name: str) -> None:
    """One check of each contract passes on a fake engine in its own process."""
    asyncio.run(CHECKS[name](as_process))


def _workers(engine: Engine) -> list[Worker]:
    return engine.core.executor.workers


def _around_calls(engine: Engine, after: Callable[[Worker, str], None]) -> None:
    """Let ``after`` spoil each worker once an RPC has run, failed or not."""
    for worker in _workers(engine):

        def call(method: str, args: Any, kwargs: Any, worker: Worker = worker) -> Any:
            try:
                return Worker.call(worker, method, args, kwargs)
            finally:
                after(worker, method)

        worker.call = call  # type: ignore[method-assign]


def _session_survives_a_failed_update(engine: Engine) -> None:
    def after(worker: Worker, method: str) -> None:
        worker.active = worker.active or method == "update_weights"

    _around_calls(engine, after)


def _finish_leaves_the_session_open(engine: Engine) -> None:
    def after(worker: Worker, method: str) -> None:
        worker.active = worker.active or method == "finish_weight_update"

    _around_calls(engine, after)


def _start_opens_although_it_failed(engine: Engine) -> None:
    def after(worker: Worker, method: str) -> None:
        worker.active = worker.active or method.startswith("start")

    _around_calls(engine, after)


def _replies_never_shift(engine: Engine) -> None:
    executor = engine.core.executor
    rpc = executor.collective_rpc

    async def tidy(*args: Any, **kwargs: Any) -> Any:
        try:
            return await rpc(*args, **kwargs)
        finally:
            await executor.drain()
            for thread in executor.threads:
                while thread.has_reply():
                    thread.take()

    executor.collective_rpc = tidy  # type: ignore[method-assign]


def _each_layer(engine: Engine, spoil: Callable[[Layer], None]) -> None:
    for worker in _workers(engine):
        for layer in worker.model.layers:
            spoil(layer)


def _start_forgets_progress(engine: Engine) -> None:
    def spoil(layer: Layer) -> None:
        def arm() -> None:
            layer.restore()
            Layer.arm(layer)

        layer.arm = arm  # type: ignore[method-assign]

    _each_layer(engine, spoil)


def _finish_drops_partial_layers(engine: Engine) -> None:
    def spoil(layer: Layer) -> None:
        layer.finalize = layer.restore  # type: ignore[method-assign]

    _each_layer(engine, spoil)


def _layers_stay_off_meta(engine: Engine) -> None:
    def spoil(layer: Layer) -> None:
        def arm() -> None:
            layer.armed = False

        layer.arm = arm  # type: ignore[method-assign]

    _each_layer(engine, spoil)


def _one_tensor_is_never_loaded(engine: Engine) -> None:
    def after(worker: Worker, method: str) -> None:
        if method == "update_weights":
            worker.model.layers[0].kernel.fill_(1.0)

    _around_calls(engine, after)


def _refused_finish_sets_the_version(engine: Engine) -> None:
    core = engine.core

    async def finish(version: str | None) -> None:
        if version is not None:
            await core.set_version(version)
        await core.collective_rpc("finish_weight_update")

    core.finish_weight_update = finish  # type: ignore[method-assign]


def _wake_up_stays_paused(engine: Engine) -> None:
    engine.core._resume = lambda: None  # type: ignore[method-assign]


def _tokens_ignore_the_weights(engine: Engine) -> None:
    engine.core.weights.fingerprint = lambda: "same"  # type: ignore[method-assign]


def _death_goes_unnoticed(engine: Engine) -> None:
    engine.core._die = lambda: engine.core.scheduler.abort()  # type: ignore[assignment]


def _refusals_become_500(engine: Engine) -> None:
    app = engine.gate._app

    async def spoiled(scope: Any, receive: Any, send: Any) -> None:
        async def resend(message: Any) -> None:
            if message.get("status") == 400:
                message["status"] = 500
            await send(message)

        await app(scope, receive, resend)

    engine.gate._app = spoiled


# fmt: off
CANARIES = [
    # how the engine is broken            the check that must reject it
    (_session_survives_a_failed_update,   "sessions.failed_update_ends_the_session"),
    (_finish_leaves_the_session_open,     "sessions.idle_takes_only_start"),
    (_start_opens_although_it_failed,     "sessions.failed_start_opens_nothing"),
    (_replies_never_shift,                "replies.first_worker_fails"),
    (_replies_never_shift,                "replies.last_worker_fails"),
    (_replies_never_shift,                "replies.both_workers_fail"),
    (_replies_never_shift,                "replies.shifted_finish_publishes"),
    (_replies_never_shift,                "replies.failing_probe_poisons_the_next"),
    (_replies_never_shift,                "replies.start_retried_after_a_lost_reply"),
    (_replies_never_shift,                "replies.middle_worker_fails"),
    (_replies_never_shift,                "replies.probe_counts_the_backlog"),
    (_start_forgets_progress,             "layers.a_straight_resend_is_torn"),
    (_finish_drops_partial_layers,        "layers.a_partial_push_is_committed_torn"),
    (_layers_stay_off_meta,               "layers.an_open_session_has_no_weights"),
    (_layers_stay_off_meta,               "layers.a_failed_update_leaves_no_weights"),
    (_one_tensor_is_never_loaded,         "layers.a_push_is_whole"),
    (_one_tensor_is_never_loaded,         "layers.a_scrubbed_resend_is_whole"),
    (_refused_finish_sets_the_version,    "versions.a_refused_finish_does_not_set_it"),
    (_refusals_become_500,                "refused[update_info-a-string]"),
    (_wake_up_stays_paused,               "pause[sleeping-wake_up]"),
    (_tokens_ignore_the_weights,          "serving.tokens_follow_the_weights"),
    (_death_goes_unnoticed,               "serving.serving_without_weights_is_fatal"),
]
# fmt: on


@pytest.mark.parametrize(
    ("spoil", "name"), CANARIES, ids=[f"{spoil.__name__[1:]}-{name}" for spoil, name in CANARIES]
)
def test_canary(spoil: Callable[[Engine], None], name: str) -> None:
    """A check rejects the engine that is broken in the way that it looks for."""
    with pytest.raises(AssertionError):
        asyncio.run(CHECKS[name](in_process(spoil)))
