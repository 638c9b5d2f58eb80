"""How a gateway's processes end: by a fault, with the server, with the launcher."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fake_engines import fault
from stand_ins import LIMIT_S, Upstream, running_gateway, running_upstream

from harness.processes import state as process_state

pytestmark = pytest.mark.processes


# fmt: off
STRUCK = [
    # id               kind      process   the stand-in's processes afterwards, by role
    ("kill-all",       "kill",   None,     {"server": "gone", "core": "gone", "workers": "gone"}),
    ("kill-server",    "kill",   "server", {"server": "gone"}),
    ("kill-core",      "kill",   "core",   {"server": "lives", "core": "gone", "workers": "lives"}),
    ("kill-worker",    "kill",   "worker", {"server": "lives", "core": "lives", "workers": "gone"}),
    ("freeze-all",     "freeze", None,     {"server": "T", "core": "T", "workers": "T"}),
    ("freeze-server",  "freeze", "server", {"server": "T", "core": "lives", "workers": "lives"}),
    ("freeze-core",    "freeze", "core",   {"server": "lives", "core": "T", "workers": "lives"}),
    ("freeze-worker",  "freeze", "worker", {"server": "lives", "core": "lives", "workers": "T"}),
]
# fmt: on


@pytest.mark.parametrize(
    ("kind", "process", "after"), [case[1:] for case in STRUCK], ids=[case[0] for case in STRUCK]
)
def test_process_faults(
    tmp_path: Path, kind: str, process: str | None, after: dict[str, str]
) -> None:
    """A fault strikes the processes that it names, and what the harness sees says which."""
    faults = [fault(kind, "engine.flush", options={"process": process})]
    with (
        running_upstream(tmp_path) as upstream,
        running_gateway(tmp_path, upstream, faults=faults) as gateway,
    ):
        gateway.started()
        _post_and_forget(f"{gateway.url}/reset_prefix_cache")
        for role, wanted in after.items():
            _wait_until(lambda role=role, wanted=wanted: _is(upstream, role) == wanted)
        if kind == "kill" and process in (None, "server"):
            gateway.process.join(LIMIT_S)
            assert gateway.process.exitcode == (-signal.SIGKILL if process is None else 1)
        elif process is None:
            assert process_state(gateway.process.pid) == "T"
        elif kind == "kill":
            assert gateway.state()["dead"] is True
        else:
            role = {"worker": "workers"}.get(process, process)
            state = gateway.wait_for(lambda s: s["workers"][0]["busy"] is not None)
            assert state["workers"][0]["busy"] == f"frozen: {role}"
            assert (state["dead"], state["checksums"]) == (False, "unknown")


def _post_and_forget(url: str) -> None:
    with contextlib.suppress(httpx.TransportError):
        httpx.post(url, timeout=1.0)


def _is(upstream: Upstream, role: str) -> str:
    given = upstream.pids[role]
    pid = given[0] if isinstance(given, list) else given
    letter = process_state(pid)
    if letter in (None, "Z"):
        return "gone"
    return "T" if letter == "T" else "lives"


def _wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s


def test_the_gateway_goes_with_its_server(tmp_path: Path) -> None:
    """A server that dies by itself takes the gateway along: connections break, the port closes."""
    faults = [fault("hang", "engine.start")]
    with (
        running_upstream(tmp_path) as upstream,
        running_gateway(tmp_path, upstream, faults=faults) as gateway,
    ):
        gateway.started()
        os.kill(upstream.pids["server"], signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{gateway.url}/start_weight_update", timeout=LIMIT_S)
        gateway.process.join(LIMIT_S)
        assert gateway.process.exitcode == 1
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{gateway.url}/health")


def test_it_leaves_with_the_launcher(tmp_path: Path) -> None:
    """A closed channel ends the process with status 0; the server lives on."""
    with (
        running_upstream(tmp_path) as upstream,
        running_gateway(tmp_path, upstream) as gateway,
    ):
        gateway.started()
        gateway.channel.close()
        gateway.process.join(LIMIT_S)
        assert gateway.process.exitcode == 0
        assert httpx.get(f"{upstream.url}/health").status_code == 200


def test_mute_agents_do_not_block_it(tmp_path: Path) -> None:
    """Agents that stop answering are reported as busy workers; commands are still obeyed."""
    with (
        running_upstream(tmp_path) as upstream,
        running_gateway(tmp_path, upstream) as gateway,
    ):
        gateway.started()
        httpx.post(f"{upstream.url}/stand_in/mute")
        begun_s = time.monotonic()
        assert gateway.tell(cmd="push", n=1) == {"ok": True, "cmd": "push"}
        assert gateway.state()["workers"][0]["busy"] == "its agent gives no answer"
        assert time.monotonic() - begun_s < LIMIT_S / 2
