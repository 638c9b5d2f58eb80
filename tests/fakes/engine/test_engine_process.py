"""An engine's process: its channel, its death, and what can be read while it is stuck."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import pytest
from fake_engines import fault, running_process

pytestmark = pytest.mark.processes


def test_it_answers_the_launcher(tmp_path: Path) -> None:
    """A new push and disarming are acknowledged, and take effect before that."""
    faults = [fault("reject", "engine.pause", push=2, nth="always")]
    with (
        running_process(tmp_path, faults=faults) as (url, channel, _),
        httpx.Client(base_url=url) as client,
    ):
        statuses = [client.post("/pause").status_code]
        for command in ({"cmd": "push", "n": 2}, {"cmd": "disarm"}):
            channel.send(command)
            assert channel.receive() == {"ok": True, "cmd": command["cmd"]}
            statuses.append(client.post("/pause").status_code)
    assert statuses == [200, 500, 200]


def test_it_leaves_with_the_launcher(tmp_path: Path) -> None:
    """A closed channel ends the process with status 0."""
    with running_process(tmp_path) as (_, channel, child):
        channel.close()
        child.join(5)
        assert child.exitcode == 0


def test_a_dead_core_ends_it(tmp_path: Path) -> None:
    """Serving without weights: 500, health 503, and exit status 1 by itself."""
    with (
        running_process(tmp_path) as (url, _, child),
        httpx.Client(base_url=url) as client,
    ):
        client.post("/start_weight_update")
        answer = client.post("/v1/completions", json={"prompt": "x"})
        assert answer.status_code == 500
        assert client.get("/health").status_code == 503
        child.join(5)
        assert child.exitcode == 1


def test_a_stuck_worker_is_visible(tmp_path: Path) -> None:
    """While a worker hangs, health, metrics and state answer; the core's queue does not."""
    faults = [fault("hang", "worker.start", where={"worker": 1})]
    with (
        running_process(tmp_path, workers=2, faults=faults) as (url, _, _),
        httpx.Client(base_url=url) as client,
    ):

        def start() -> None:
            with pytest.raises(httpx.TransportError):
                httpx.post(f"{url}/start_weight_update", timeout=5)

        asking = threading.Thread(target=start, daemon=True)
        asking.start()
        state = _wait_for_busy(client)
        assert [worker["active"] for worker in state["workers"]] == [True, False]
        assert [worker["busy"] for worker in state["workers"]] == [None, "start_weight_update"]
        assert state["in_flight"] == ["engine.start"]
        assert state["checksums"] is None
        assert client.get("/health").status_code == 200
        gauge = 'vllm:rl_weight_update_operations_in_flight{operation="start"} 1.0'
        assert gauge in client.get("/metrics").text
        with pytest.raises(httpx.ReadTimeout):
            client.get("/weight_info", timeout=0.1)
    asking.join(5)


def _wait_for_busy(client: httpx.Client) -> dict[str, list[dict[str, object]]]:
    deadline = time.monotonic() + 5
    while True:
        state = client.get("/harness/state").json()
        first, second = state["workers"]
        if first["active"] and not first["busy"] and second["busy"]:
            return state
        assert time.monotonic() < deadline, state
