"""The weight version: one string per engine that says less than it seems to.

Source: vLLM 0.32, ``v1/engine/async_llm.py`` (``finish_weight_update``) and ``v1/engine/core.py``.
"""

from __future__ import annotations

from conformance.engine.contract import (
    FINISH,
    FINISH_REFUSED,
    START,
    EngineMaker,
    Json,
    Step,
    converse,
    holds,
    update,
)


def _is(version: str) -> Step:
    return Step("GET /weight_info", 200, f'{{"weight_version":"{version}"}}')


def _finish(body: Json, status: int = 200) -> Step:
    return Step("POST /finish_weight_update", status, body=body)


async def starts_as_default(make: EngineMaker) -> None:
    """A fresh engine says ``default``, and a finish without a version keeps that."""
    async with make() as engine:
        await converse(engine, [_is("default"), START, FINISH, _is("default")])
        await converse(engine, [START, _finish({"weight_version": None}), _is("default")])
        await converse(engine, [START, _finish({}), _is("default")])


async def finish_sets_it_without_an_update(make: EngineMaker) -> None:
    """Start and finish set the version though nothing was loaded; the empty string counts."""
    async with make() as engine:
        await converse(engine, [START, _finish({"weight_version": "a"}), _is("a")])
        await holds(engine, 0)
        await converse(engine, [START, _finish({"weight_version": ""}), _is("")])


async def a_refused_finish_does_not_set_it(make: EngineMaker) -> None:
    """A finish that the workers refuse leaves the version alone."""
    async with make() as engine:
        await converse(engine, [_finish({"weight_version": "b"}, 500), _is("default")])


async def misspelt_fields_are_ignored(make: EngineMaker) -> None:
    """A wrong field or a query parameter is answered 200 and sets nothing."""
    async with make() as engine:
        for request, body in (
            ("POST /finish_weight_update", {"version": "7"}),
            ("POST /finish_weight_update?weight_version=7", None),
        ):
            await converse(engine, [START, Step(request, 200, body=body), _is("default")])


async def publish_sets_it_any_time(make: EngineMaker) -> None:
    """``/update_weight_version`` needs no session and asks no worker."""
    async with make(configured=False) as engine:
        publish = Step(
            "POST /update_weight_version",
            says='{"success":true,"new_version":"8"}',
            body={"new_version": "8"},
        )
        await converse(engine, [publish, _is("8"), Step("POST /pause"), publish, _is("8")])


async def a_failed_push_keeps_it(make: EngineMaker) -> None:
    """After a failed update and a refused finish the version is the old one."""
    async with make() as engine:
        await engine.init()
        fails = update(engine, on=[False], status=500, says="Worker failed")
        await converse(engine, [START, fails, FINISH_REFUSED, START, FINISH, _is("default")])


CHECKS = (
    starts_as_default,
    finish_sets_it_without_an_update,
    a_refused_finish_does_not_set_it,
    misspelt_fields_are_ignored,
    publish_sets_it_any_time,
    a_failed_push_keeps_it,
)
