"""The gateway in front of a stand-in server: faults, journal, state, tokens, death."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engines import SEED, FakeUnderTest, fault
from stand_ins import (
    LIMIT_S,
    Running,
    expected_one,
    gateway_config,
    running_gateway,
    running_upstream,
)

from fakes.model_spec import TINY_LLAMA, expected_checksums, fingerprint
from harness.journal import JournalWriter, read_journal
from vllm_engine.gateway import Gateway, GatewayError
from vllm_engine.known_weights import UNMATCHED

pytestmark = pytest.mark.processes


def _name(step: int, workers: int = 1) -> str:
    return fingerprint(expected_checksums(SEED, step, workers, shape=TINY_LLAMA))


UNMATCHED_NAME = fingerprint(UNMATCHED)


def _tokens(gateway: Running) -> list[tuple[str, str]]:
    """Return fingerprint and label of every token so far."""
    return [
        (event["fingerprint"], event["version"])
        for event in read_journal(gateway.journal)
        if event["event"] == "token"
    ]


def _wait_for_token(gateway: Running, token: tuple[str, str]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while token not in _tokens(gateway):
        assert time.monotonic() < end_s, _tokens(gateway)


# fmt: off
FAULTS = [
    # id               kind             options           what the client gets          started
    ("reject",         "reject",        {},               500,                          False),
    ("disconnect",     "disconnect",    {},               httpx.RemoteProtocolError,    False),
    ("request-lost",   "request_lost",  {},               httpx.ReadTimeout,            False),
    ("reply-lost",     "reply_lost",    {},               httpx.RemoteProtocolError,    True),
    ("reply-silent",   "reply_lost",    {"silent": True}, httpx.ReadTimeout,            True),
    ("hang",           "hang",          {},               httpx.ReadTimeout,            False),
    ("slow",           "slow",          {"seconds": 0.1}, 200,                          True),
]
# fmt: on


def test_faults(tmp_path: Path) -> None:
    """Each fault gives the client its own failure, with or without the request's effect."""
    faults = [
        fault(kind, "engine.start", options=options, push=n, fault=n)
        for n, (_, kind, options, _, _) in enumerate(FAULTS)
    ]
    with running_upstream(tmp_path) as upstream:
        with running_gateway(tmp_path, upstream, faults=faults) as gateway:
            gateway.started()
            with httpx.Client(base_url=gateway.url, timeout=LIMIT_S) as client:
                client.post("/pause?mode=keep")
                for push, (name, _, _, gets, started) in enumerate(FAULTS):
                    gateway.tell(cmd="push", n=push)
                    _strike(client, gets)
                    state = gateway.state()
                    assert state["workers"][0]["active"] is started, name
                    if started:
                        assert client.post("/finish_weight_update").status_code == 200
                assert client.post("/start_weight_update").status_code == 200
        fired = [e["fault"] for e in read_journal(gateway.journal) if e["event"] == "fault"]
        assert fired == list(range(len(FAULTS)))


def _strike(client: httpx.Client, gets: Any) -> None:
    if isinstance(gets, int):
        assert client.post("/start_weight_update").status_code == gets
    else:
        with pytest.raises(gets):
            client.post("/start_weight_update", timeout=0.3 if gets is httpx.ReadTimeout else 10)


def test_a_push_and_its_journal(tmp_path: Path) -> None:
    """What a push does is in the journal, in order, and every token with its weights and label."""
    with (
        running_upstream(tmp_path) as upstream,
        running_gateway(tmp_path, upstream) as gateway,
    ):
        gateway.started()
        _wait_for_token(gateway, (_name(0), "default"))
        asyncio.run(_push(gateway, tmp_path, step=1))
        _wait_for_token(gateway, (_name(1), "1"))
        state = gateway.state()
    events = read_journal(gateway.journal)
    assert events[0] == events[0] | {"event": "started", "who": "engine:0", "workers": 1}
    versions = [event["version"] for event in events if event["event"] == "version"]
    assert versions == ["1"]
    at = next(n for n, event in enumerate(events) if event["event"] == "version")
    points = [e["point"] for e in events[:at] if e.get("phase") == "begin"]
    assert points == [
        "engine.init",
        "engine.pause",
        "engine.start",
        "engine.update",
        "engine.finish",
        "engine.publish",
    ]
    served = {(e["fingerprint"], e["version"]) for e in events if e["event"] == "token"}
    assert served == {(_name(0), "default"), (_name(1), "1")}
    assert {(e["fingerprint"]) for e in events[at:] if e["event"] == "token"} == {_name(1)}
    assert state == {
        "version": "1",
        "paused": False,
        "sleeping": False,
        "dead": False,
        "in_flight": [],
        "workers": [
            {
                "active": False,
                "is_draft": False,
                "initialized": True,
                "armed": 0,
                "meta": False,
                "backlog": None,
                "busy": None,
                "pending": [],
            }
        ],
        "checksums": expected_checksums(SEED, 1, 1, shape=TINY_LLAMA),
        "draft_checksums": {},
    }


def test_a_request_that_outlives_its_client(tmp_path: Path) -> None:
    """What a fault delays beyond its client's time-out is carried out, body and all, and its
    publication is in the journal."""
    faults = [fault("slow", "engine.publish", options={"seconds": 0.4})]
    with (
        running_upstream(tmp_path) as upstream,
        running_gateway(tmp_path, upstream, faults=faults) as gateway,
    ):
        gateway.started()
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{gateway.url}/update_weight_version", json={"new_version": "7"}, timeout=0.1
            )
        _wait_for_token(gateway, (_name(0), "7"))
        events = read_journal(gateway.journal)
    late = [(e["event"], e.get("status")) for e in events if e.get("point") == "engine.publish"]
    assert late == [("request", None), ("request", 200)]
    assert [e["version"] for e in events if e["event"] == "version"] == ["7"]


async def _push(
    gateway: Running,
    directory: Path,
    *,
    step: int,
    label: str | None = None,
    names: slice = slice(None),
    resume: bool = True,
) -> None:
    """Push the tensors ``names`` of a step, by hand, as a trainer would."""
    assert gateway.tell(cmd="push", n=step) == {"ok": True, "cmd": "push"}
    memory = directory / f"memory-{step}"
    memory.mkdir(exist_ok=True)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=LIMIT_S) as client:
        trainer = FakeUnderTest(client, 1, memory)
        routes = ["/pause?mode=keep", "/start_weight_update", "", "/finish_weight_update"]
        (await trainer.init()).raise_for_status()
        for route in routes:
            if route:
                answer = await client.post(route)
            else:
                answer = await trainer.update(step, trainer.names[names])
            assert answer.status_code == 200, answer.text
        published = {"new_version": label or str(step)}
        await client.post("/update_weight_version", json=published)
        trainer.close()
        if resume:
            await client.post("/resume")


def test_torn_weights_are_named_as_such(tmp_path: Path) -> None:
    """Tokens of weights that are no step's match none, under whatever label, and so does the
    state."""
    with (
        running_upstream(tmp_path) as upstream,
        running_gateway(tmp_path, upstream) as gateway,
    ):
        gateway.started()
        asyncio.run(_push(gateway, tmp_path, step=1, names=slice(3)))
        _wait_for_token(gateway, (UNMATCHED_NAME, "1"))
        assert gateway.state()["checksums"] == UNMATCHED


def test_unpublished_weights_are_seen(tmp_path: Path) -> None:
    """New weights under the old label, and old weights under a new one, are told apart."""
    with (
        running_upstream(tmp_path) as upstream,
        running_gateway(tmp_path, upstream) as gateway,
    ):
        gateway.started()
        asyncio.run(_push(gateway, tmp_path, step=1, label="default"))
        _wait_for_token(gateway, (_name(1), "default"))
        httpx.post(f"{gateway.url}/update_weight_version", json={"new_version": "2"})
        _wait_for_token(gateway, (_name(1), "2"))


def test_a_label_that_only_finish_sets(tmp_path: Path) -> None:
    """``finish`` with a version publishes; refused, or without a content type, it does not."""
    body = b'{"weight_version": "9"}'
    json_type = {"content-type": "application/json"}
    with (
        running_upstream(tmp_path) as upstream,
        running_gateway(tmp_path, upstream) as gateway,
        httpx.Client(base_url=gateway.url, timeout=LIMIT_S) as client,
    ):
        gateway.started()
        client.post("/pause?mode=keep")
        statuses = []
        for start, headers in ((False, json_type), (True, {}), (True, json_type)):
            if start:
                client.post("/start_weight_update")
            answer = client.post("/finish_weight_update", content=body, headers=headers)
            statuses.append(answer.status_code)
        assert statuses == [500, 200, 200]  # without a content type there is no body to vLLM
        assert client.get("/weight_info").json() == {"weight_version": "9"}
        versions = [e for e in read_journal(gateway.journal) if e["event"] == "version"]
        assert [event["version"] for event in versions] == ["9"]


def test_a_paused_engine(tmp_path: Path) -> None:
    """Its weights are unknown, its label and pause are not; a request that waited through a push
    is served by the new weights under the new label, and that is no false alarm."""
    with (
        running_upstream(tmp_path) as upstream,
        running_gateway(tmp_path, upstream) as gateway,
    ):
        gateway.started()
        asyncio.run(_push(gateway, tmp_path, step=1, resume=False))
        before = _tokens(gateway)
        state = gateway.state()
        assert (state["checksums"], state["paused"]) == ("unknown", True)
        httpx.post(f"{gateway.url}/resume")
        _wait_for_token(gateway, (_name(1), "1"))
        assert set(_tokens(gateway)[len(before) :]) == {(_name(1), "1")}


def test_an_engine_with_weights_on_meta(tmp_path: Path) -> None:
    """Nothing is asked of it, which would kill it: its checksums are null, as a fake's."""
    with (
        running_upstream(tmp_path) as upstream,
        running_gateway(tmp_path, upstream) as gateway,
    ):
        gateway.started()
        httpx.post(f"{gateway.url}/pause?mode=keep")
        httpx.post(f"{gateway.url}/start_weight_update")
        state = gateway.state()
        assert state["checksums"] is None
        worker = state["workers"][0]
        assert (worker["active"], worker["meta"]) == (True, True)
        assert worker["armed"] > 0


def test_a_stuck_worker(tmp_path: Path) -> None:
    """The state answers in bounded time, with the worker's call and what was seen last."""
    with (
        running_upstream(tmp_path, workers=2, backend="nccl") as upstream,
        running_gateway(tmp_path, upstream, backend="nccl") as gateway,
    ):
        gateway.started()
        httpx.post(f"{gateway.url}/update_weight_version", json={"new_version": "old"})
        httpx.post(f"{gateway.url}/pause?mode=keep")
        init = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 3}

        def join_nobody() -> None:
            with contextlib.suppress(httpx.HTTPError):  # the engine ends before it answers
                httpx.post(
                    f"{gateway.url}/init_weight_transfer_engine",
                    json={"init_info": init},
                    timeout=10,
                )

        joining = threading.Thread(target=join_nobody, daemon=True)
        joining.start()
        # A look that begins before the call may end with "the core gives no answer" instead.
        joins = ["init_weight_transfer_engine"] * 2
        state = gateway.wait_for(lambda s: [each["busy"] for each in s["workers"]] == joins)
        assert (state["version"], state["paused"]) == ("old", True)
        assert (state["checksums"], state["dead"]) == ("unknown", False)
        assert state["in_flight"] == ["engine.init"]
        joining.join(LIMIT_S)


@pytest.mark.parametrize(
    ("gpus", "backend"), [([], "shared_memory"), (["3", "1"], "cuda_ipc")], ids=["cpu", "gpus"]
)
def test_commands_reach_the_agents(tmp_path: Path, gpus: list[str], backend: str) -> None:
    """The agents are configured once the server is reset, and told of pushes and disarming."""
    faults = [fault("hang", "worker.start", where={"worker": 1})]
    with (
        running_upstream(tmp_path, workers=2) as upstream,
        running_gateway(tmp_path, upstream, faults=faults, gpu_offset=2, gpus=gpus) as gateway,
    ):
        gateway.started()
        assert gateway.tell(cmd="push", n=3) == {"ok": True, "cmd": "push"}
        assert gateway.tell(cmd="disarm") == {"ok": True, "cmd": "disarm"}
        told = upstream.told()
    configure = {
        "cmd": "configure",
        "index": 0,
        "who": "engine:0",
        "journal": str(gateway.journal),
        "faults": faults,
        "push": 0,
        "rendezvous_s": 1.0,
        "gpu_offset": 2,
    }
    reset = {
        "method": "resync_chaos_reset",
        "kwargs": {"backend": backend, "seed": SEED},
    }
    assert [asked for rank, asked in told if rank == -1] == [reset]
    for rank in (0, 1):
        own = [asked for to, asked in told if to in (-1, rank)]
        assert own == [
            {"cmd": "forget"},
            reset,
            configure,
            {"cmd": "push", "n": 3},
            {"cmd": "disarm"},
        ]


def test_the_next_scenario_gets_a_fresh_engine(tmp_path: Path) -> None:
    """Label, pause, session, weights and channel of one scenario are gone in the next."""
    with running_upstream(tmp_path) as upstream:
        with running_gateway(tmp_path, upstream) as first:
            first.started()
            asyncio.run(_push(first, tmp_path, step=1, resume=False))
            httpx.post(f"{first.url}/start_weight_update")
        second_dir = tmp_path / "second"
        second_dir.mkdir()
        with running_gateway(second_dir, upstream) as second:
            state = second.started().state()
        assert (state["version"], state["paused"]) == ("default", False)
        assert state["checksums"] == expected_checksums(SEED, 0, 1, shape=TINY_LLAMA)
        worker = state["workers"][0]
        assert [worker[k] for k in ("active", "initialized", "armed")] == [False, False, 0]


def test_a_server_that_is_not_fresh_is_refused(tmp_path: Path) -> None:
    """A reset that left weights and a channel behind is noticed before the scenario starts."""
    with running_upstream(tmp_path) as upstream:
        with running_gateway(tmp_path, upstream) as first:
            first.started()
            asyncio.run(_push(first, tmp_path, step=1))
        httpx.post(f"{upstream.url}/stand_in/stubborn")
        second_dir = tmp_path / "second"
        second_dir.mkdir()
        config = gateway_config(second_dir, upstream)

        async def start() -> None:
            journal = JournalWriter(Path(config["journal"]), "engine:0")
            with journal as record:
                async with Gateway(config, record, expected_one).running():
                    raise AssertionError("it started")

        with pytest.raises(GatewayError) as caught:
            asyncio.run(start())
        message = str(caught.value)
        assert message.startswith(f"{upstream.url}: expected a fresh engine after its reset: ")
        assert "found label 'default', step None, workers [{" in message
        assert read_journal(Path(config["journal"])) == []
