"""Fakes that break one rule each, for the checks that must notice.

Each function takes one engine and spoils it by replacing a method of that one instance, which mypy
cannot follow: hence each ``type: ignore[method-assign]`` here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fakes.engine import worker as rules
from fakes.engine.app import Engine
from fakes.engine.generation import PauseState, ServedWeights
from fakes.engine.layers import Layer, Model
from fakes.engine.worker import Worker

After = Callable[[Worker, str, Exception | None], None]


def workers_of(engine: Engine) -> list[Worker]:
    return engine.core.executor.workers


def around_calls(
    engine: Engine,
    *,
    before: Callable[[Worker, str], None] = lambda worker, method: None,
    after: After = lambda worker, method, error: None,
) -> None:
    """Spoil each worker before an RPC runs, and after it has, whether it failed or not."""
    for worker in workers_of(engine):
        inner = worker.call

        def call(
            method: str, args: Any, kwargs: Any, worker: Worker = worker, inner: Any = inner
        ) -> Any:
            before(worker, method)
            failed: Exception | None = None
            try:
                return inner(method, args, kwargs)
            except Exception as error:
                failed = error
                raise
            finally:
                after(worker, method, failed)

        # This one worker is to misbehave, not its class.
        worker.call = call  # type: ignore[method-assign]


def _forgiving(*texts: str) -> Callable[[Engine], None]:
    """Return a spoiler that answers 200 where a worker refuses with one of these texts."""

    def spoil(engine: Engine) -> None:
        for worker in workers_of(engine):
            inner = worker.call

            def call(method: str, args: Any, kwargs: Any, inner: Any = inner) -> Any:
                try:
                    return inner(method, args, kwargs)
                except Exception as error:
                    if str(error).startswith(texts):
                        return None
                    raise

            # This one worker is to misbehave, not its class.
            worker.call = call  # type: ignore[method-assign]

    return spoil


def init_needs_a_closed_session(engine: Engine) -> None:
    def before(worker: Worker, method: str) -> None:
        if method.startswith("init") and worker.active:
            raise RuntimeError(rules.ALREADY_ACTIVE)

    around_calls(engine, before=before)


def a_failed_init_ends_the_session(engine: Engine) -> None:
    def after(worker: Worker, method: str, error: Exception | None) -> None:
        worker.active = worker.active and not (method.startswith("init") and error)

    around_calls(engine, after=after)


def shutdown_ends_the_session(engine: Engine) -> None:
    def before(worker: Worker, method: str) -> None:
        worker.active = worker.active and not method.startswith("shutdown")

    around_calls(engine, before=before)


def shutdown_needs_a_configuration(engine: Engine) -> None:
    def before(worker: Worker, method: str) -> None:
        if method.startswith("shutdown") and worker._transfer is None:
            raise RuntimeError(rules.NOT_CONFIGURED)

    around_calls(engine, before=before)


a_second_start_is_welcome = _forgiving(rules.ALREADY_ACTIVE)
a_draft_needs_no_model = _forgiving(rules.NO_DRAFT)
an_update_needs_no_start = _forgiving(rules.NOT_STARTED)
a_finish_needs_no_start = _forgiving(rules.NO_MATCHING_START)
unknown_names_are_skipped = _forgiving("There is no module")
nothing_is_configured_and_all_works = _forgiving(rules.NOT_CONFIGURED)


def a_failed_start_opens(engine: Engine) -> None:
    def after(worker: Worker, method: str, error: Exception | None) -> None:
        worker.active = worker.active or method.startswith("start")

    around_calls(engine, after=after)


def a_draft_session_is_the_targets(engine: Engine) -> None:
    for worker in workers_of(engine):
        worker.draft = worker.model


def a_failed_update_keeps_the_session(engine: Engine) -> None:
    def after(worker: Worker, method: str, error: Exception | None) -> None:
        worker.active = worker.active or method == "update_weights"

    around_calls(engine, after=after)


def a_failed_update_puts_the_weights_back(engine: Engine) -> None:
    def after(worker: Worker, method: str, error: Exception | None) -> None:
        if method == "update_weights" and error:
            worker.model.abort()

    around_calls(engine, after=after)


def a_failed_finish_ends_the_session(engine: Engine) -> None:
    def after(worker: Worker, method: str, error: Exception | None) -> None:
        worker.active = worker.active and method != "finish_weight_update"

    around_calls(engine, after=after)


def a_failed_finish_puts_the_weights_back(engine: Engine) -> None:
    def after(worker: Worker, method: str, error: Exception | None) -> None:
        if method == "finish_weight_update" and error:
            worker.model.abort()

    around_calls(engine, after=after)


def a_failed_lora_reset_keeps_the_session(engine: Engine) -> None:
    def after(worker: Worker, method: str, error: Exception | None) -> None:
        worker.active = worker.active or "lora" in str(error)

    around_calls(engine, after=after)


def draft_sessions_reset_adapters(engine: Engine) -> None:
    def after(worker: Worker, method: str, error: Exception | None) -> None:
        if method == "finish_weight_update" and worker.is_draft and not error:
            worker.reset_lora_state()

    around_calls(engine, after=after)


def pause_ends_the_session(engine: Engine) -> None:
    def after(worker: Worker, method: str, error: Exception | None) -> None:
        worker.active = worker.active and method != "synchronize_device"

    around_calls(engine, after=after)


def checksums_read_what_is_behind_meta(engine: Engine) -> None:
    for worker in workers_of(engine):
        model = worker.model

        def checksums(model: Model = model) -> dict[str, str]:
            shown = [layer.weight for layer in model.layers]
            for layer in model.layers:
                layer.weight = layer.kernel
            try:
                return Model.checksums(model)
            finally:
                for layer, weight in zip(model.layers, shown, strict=True):
                    layer.weight = weight

        # This one model is to misbehave, not its class.
        model.checksums = checksums  # type: ignore[method-assign]


class _AlwaysServed(ServedWeights):
    on_meta = False  # type: ignore[assignment]  # a property in the class that tells the truth

    def fingerprint(self) -> str:
        return "whatever"


def meta_is_served(engine: Engine) -> None:
    engine.core.weights = _AlwaysServed(workers_of(engine))


def publishing_needs_a_closed_session(engine: Engine) -> None:
    core, set_version = engine.core, engine.core.set_version

    async def publish(version: str) -> None:
        if any(worker.active for worker in workers_of(engine)):
            raise RuntimeError(rules.ALREADY_ACTIVE)
        await set_version(version)

    core.set_version = publish  # type: ignore[method-assign]


def a_failed_finish_publishes(engine: Engine) -> None:
    core = engine.core

    async def finish(version: str | None) -> None:
        try:
            await core.collective_rpc("finish_weight_update")
        finally:
            if version is not None:
                await core.set_version(version)

    core.finish_weight_update = finish  # type: ignore[method-assign]


def a_draft_session_never_publishes(engine: Engine) -> None:
    core = engine.core

    async def finish(version: str | None) -> None:
        draft = any(worker.is_draft for worker in workers_of(engine))
        await core.collective_rpc("finish_weight_update")
        if version is not None and not draft:
            await core.set_version(version)

    core.finish_weight_update = finish  # type: ignore[method-assign]


def a_version_is_set_once(engine: Engine) -> None:
    core, set_version = engine.core, engine.core.set_version

    async def publish(version: str) -> None:
        if version == core.version:
            raise RuntimeError("the version is there already")
        await set_version(version)

    core.set_version = publish  # type: ignore[method-assign]


def resume_wakes_memory_up(engine: Engine) -> None:
    core, resume = engine.core, engine.core._resume

    def both() -> None:
        core._sleeping_tags.clear()
        resume()

    core._resume = both  # type: ignore[method-assign]


def any_wake_up_resumes(engine: Engine) -> None:
    core, wake = engine.core, engine.core._wake_memory

    async def both(tags: Any) -> None:
        await wake(tags)
        core._resume()

    core._wake_memory = both  # type: ignore[method-assign]


def unknown_tags_wake_all(engine: Engine) -> None:
    core, wake = engine.core, engine.core._wake_memory

    async def wider(tags: Any) -> None:
        await wake(None if tags and "nonsense" in tags else tags)

    core._wake_memory = wider  # type: ignore[method-assign]


def a_pause_that_fails_has_not_paused(engine: Engine) -> None:
    core, pause = engine.core, engine.core.pause

    async def undo(*args: Any, **kwargs: Any) -> None:
        try:
            await pause(*args, **kwargs)
        except Exception:
            core.scheduler.pause_state = PauseState.UNPAUSED
            raise

    core.pause = undo  # type: ignore[method-assign]


def a_timed_out_reply_is_dropped(engine: Engine) -> None:
    executor = engine.core.executor
    rpc = executor.collective_rpc

    async def tidy(*args: Any, **kwargs: Any) -> Any:
        if any(thread.has_reply() for thread in executor.threads):
            await executor.drain()
        for thread in executor.threads:
            while thread.has_reply():
                thread.take()
        return await rpc(*args, **kwargs)

    executor.collective_rpc = tidy  # type: ignore[method-assign]


def the_version_skips_the_queue(engine: Engine) -> None:
    async def at_once() -> str:
        return engine.core.version

    engine.core.get_version = at_once  # type: ignore[method-assign]


def checksums_survive_death(engine: Engine) -> None:
    core = engine.core

    async def at_once() -> list[dict[str, str]]:
        return [worker.compute_weight_checksums() for worker in workers_of(engine)]

    core.compute_weight_checksums = at_once  # type: ignore[method-assign]


def a_dead_engine_is_healthy(engine: Engine) -> None:
    rewrite_answers(engine, {503: 200})


def refusals_end_the_session(engine: Engine) -> None:
    def on_status(status: int) -> None:
        if status == 400:
            for worker in workers_of(engine):
                worker.active = False

    rewrite_answers(engine, {}, on_status)


def rewrite_answers(
    engine: Engine,
    statuses: Mapping[int, int],
    on_status: Callable[[int], None] = lambda status: None,
) -> None:
    """Answer some statuses as others."""
    app = engine.gate._app

    async def spoiled(scope: Any, receive: Any, send: Any) -> None:
        async def resend(message: Any) -> None:
            if "status" in message:
                on_status(message["status"])
                message["status"] = statuses.get(message["status"], message["status"])
            await send(message)

        await app(scope, receive, resend)

    engine.gate._app = spoiled


def start_forgets_progress(engine: Engine) -> None:
    for worker in workers_of(engine):
        for layer in worker.model.layers:

            def arm(layer: Layer = layer) -> None:
                layer.restore()
                Layer.arm(layer)

            layer.arm = arm  # type: ignore[method-assign]
