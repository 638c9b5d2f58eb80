"""What the checks do not cover: draft sessions, vllm-next, time-outs, the journal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engines import FakeUnderTest, build_in_process

from conformance.engine.contract import FINISH, FINISH_REFUSED, START, Step, converse, holds
from fakes import model_spec
from fakes.engine.app import Engine
from fakes.engine.executor import RING_SLOTS
from fakes.engine.generation import token_at
from fakes.engine.profiles import profile_named

Story = Callable[[Engine, FakeUnderTest], Awaitable[None]]


def _tell(story: Story, memory: Path, **shape: Any) -> None:
    async def run() -> None:
        engine = build_in_process(**shape)
        transport = httpx.ASGITransport(engine.gate, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            fake = FakeUnderTest(client, shape.get("workers", 1), memory)
            await fake.init()
            await story(engine, fake)
            fake.close()

    asyncio.run(run())


async def _state(fake: FakeUnderTest) -> Any:
    return (await fake.client.get("/harness/state")).json()


DRAFT = Step("POST /start_draft_weight_update", says="Draft weight update started")


def test_a_draft_session_loads_the_draft(tmp_path: Path) -> None:
    """A draft session arms and writes the draft model alone."""

    async def story(engine: Engine, fake: FakeUnderTest) -> None:
        await converse(fake, [DRAFT])
        worker = (await _state(fake))["workers"][0]
        assert worker["is_draft"]
        assert all(name.startswith("draft.") for name in worker["armed"])
        await holds(fake, 0)
        await converse(fake, [FINISH])
        wanted = model_spec.expected_checksums(7, 0, 1, draft=True)
        assert (await _state(fake))["draft_checksums"] == wanted

    _tell(story, tmp_path, draft=True)


def test_a_failed_draft_session_needs_a_draft_flush(tmp_path: Path) -> None:
    """After a failed draft update a plain session does not touch the draft model's layers."""

    async def story(engine: Engine, fake: FakeUnderTest) -> None:
        await converse(fake, [DRAFT])
        assert (await fake.update(1, ["nope.weight"])).status_code == 500
        await converse(fake, [START, FINISH])
        assert (await _state(fake))["workers"][0]["meta"]
        await converse(fake, [DRAFT, FINISH])
        assert not (await _state(fake))["workers"][0]["meta"]

    _tell(story, tmp_path, draft=True)


def test_next_update_failure_ends_the_session_clean(tmp_path: Path) -> None:
    """vllm-next: a failed update puts old parameters back, and a straight resend is whole."""

    async def story(engine: Engine, fake: FakeUnderTest) -> None:
        await converse(fake, [START])
        first = fake.names[: fake.names.index(fake.fused[0]) + 1]
        assert (await fake.update(1, [*first, "nope.weight"])).status_code == 500
        worker = (await _state(fake))["workers"][0]
        assert (worker["active"], worker["armed"], worker["meta"]) == (False, [], False)
        await converse(fake, [FINISH_REFUSED, START])
        assert (await fake.update(1)).status_code == 200
        await converse(fake, [FINISH])
        await holds(fake, 1)

    _tell(story, tmp_path, profile="vllm-next")


def test_next_finish_failure_ends_the_session(tmp_path: Path) -> None:
    """vllm-next: a failed finish closes the session and restores what was not written."""

    async def story(engine: Engine, fake: FakeUnderTest) -> None:
        fails = Step("POST /finish_weight_update", 500, "injected failure")
        await converse(fake, [START, fails, FINISH_REFUSED])
        await holds(fake, 0)

    _tell(story, tmp_path, profile="vllm-next", failing={"finish_weight_update": 0})


def test_a_wrong_shape_poisons_a_fused_layer(tmp_path: Path) -> None:
    """vLLM buffers a tensor before it looks at its shape, so no flush gets rid of it again."""

    async def story(engine: Engine, fake: FakeUnderTest) -> None:
        await converse(fake, [START])
        _, key, _ = fake.fused
        assert (await fake.update(1, fake.fused[:2], misshapen=key)).status_code == 500
        fails = Step("POST /finish_weight_update", 500, "exceeds dimension size")
        await converse(fake, [START, fails, fails])
        assert (await fake.update(1)).status_code == 200
        await converse(fake, [fails])

    _tell(story, tmp_path)


def test_a_timed_out_rpc_shifts_every_rank(tmp_path: Path) -> None:
    """A time-out leaves one unread reply on each rank from the slow one on; serving then dies."""

    async def story(engine: Engine, fake: FakeUnderTest) -> None:
        slow = engine.core.executor.workers[0]
        go_on = threading.Event()
        slow.call = lambda *_: go_on.wait()  # type: ignore[method-assign]
        body = {"method": "check_health", "timeout": 0.01}
        answer = await fake.client.post("/collective_rpc", json=body)
        assert "RPC call to check_health timed out." in answer.text
        go_on.set()
        await engine.core.executor.drain()
        assert [worker["backlog"] for worker in (await _state(fake))["workers"]] == [1, 1]
        completion = {"prompt": "x", "max_tokens": 1}
        assert (await fake.client.post("/v1/completions", json=completion)).status_code == 500

    _tell(story, tmp_path, workers=2)


def test_a_full_ring_stops_the_worker(tmp_path: Path) -> None:
    """A worker with ten unread replies blocks in the next: every RPC answers, no token comes."""

    async def story(engine: Engine, fake: FakeUnderTest) -> None:
        fails = Step("POST /finish_weight_update", 500)
        await converse(fake, [fails] * RING_SLOTS)
        await engine.core.executor.drain()
        await fake.client.post("/finish_weight_update")
        with pytest.raises(TimeoutError):  # rank 0 answered; rank 1 goes on, and gets stuck
            await asyncio.wait_for(engine.core.executor.drain(), 0.2)
        assert (await _state(fake))["workers"][1]["busy"] == "finish_weight_update"

    _tell(story, tmp_path, workers=2)


def test_tokens_are_journalled(tmp_path: Path) -> None:
    """Every token names its request, its index, the weights' fingerprint and the version."""
    events: list[dict[str, Any]] = []

    def record(event: str, /, **fields: Any) -> None:
        if event == "token":
            events.append(fields)

    async def story(engine: Engine, fake: FakeUnderTest) -> None:
        body = {"prompt": [1, 2], "max_tokens": 2}
        choice = (await fake.client.post("/v1/completions", json=body)).json()["choices"][0]
        fingerprint = model_spec.fingerprint(model_spec.expected_checksums(7, 0, 2))
        wanted = [token_at("[1, 2]", index, fingerprint) for index in range(2)]
        assert choice["token_ids"] == wanted
        assert [(e["index"], e["token"]) for e in events] == list(enumerate(wanted))
        assert {(e["fingerprint"], e["version"]) for e in events} == {(fingerprint, "default")}
        assert len({e["request"] for e in events}) == 1

    _tell(story, tmp_path, workers=2, record=record)


def test_layers_on_meta_are_journalled(tmp_path: Path) -> None:
    """Each worker tells when its layers go to meta, come back, and wait for the finish; once."""
    events: dict[int, list[Any]] = {0: [], 1: []}

    def record(event: str, /, **fields: Any) -> None:
        if event == "layers":
            events[fields["worker"]].append(fields["on_meta"])

    async def story(engine: Engine, fake: FakeUnderTest) -> None:
        count = len(engine.core.executor.workers[0].model.layers)
        draft = len(engine.core.executor.workers[0].models[1].layers)
        await converse(fake, [START])
        assert (await fake.update(1)).status_code == 200
        await converse(fake, [FINISH, DRAFT, FINISH])
        target = [{"target": (count, count)}, {"target": (0, count)}, {}]
        assert events[1] == [*target, {"draft": (draft, draft)}, {}]
        assert events[0] == events[1]

    _tell(story, tmp_path, workers=2, draft=True, record=record)


def test_a_kept_completion_spans_versions(tmp_path: Path) -> None:
    """A completion frozen during a push ends with tokens of the new weights."""
    fingerprints: list[str] = []

    def record(event: str, /, **fields: Any) -> None:
        if event == "token":
            fingerprints.append(fields["fingerprint"])

    async def story(engine: Engine, fake: FakeUnderTest) -> None:
        body = {"prompt": "x", "max_tokens": 30}
        running = asyncio.create_task(fake.client.post("/v1/completions", json=body))
        while not fingerprints:
            await asyncio.sleep(0)
        await converse(fake, [Step("POST /pause?mode=keep"), START])
        assert (await fake.update(1)).status_code == 200
        await converse(fake, [FINISH, Step("POST /resume")])
        assert (await running).json()["choices"][0]["finish_reason"] == "length"
        old, new = (
            model_spec.fingerprint(model_spec.expected_checksums(7, step, 1)) for step in (0, 1)
        )
        assert list(dict.fromkeys(fingerprints)) == [old, new]

    _tell(story, tmp_path, record=record)


def test_an_unknown_profile_is_refused() -> None:
    """The error names the profiles that there are."""
    with pytest.raises(ValueError, match=r"expected one of vllm-0\.32, vllm-next, found 'vllm-9'"):
        profile_named("vllm-9")
