"""What the processes of a run are told of GPUs, with a launcher that starts nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from real_runs import make_scenario

from harness.contracts import ProcessSpec
from harness.parts import default_parts
from harness.scenario import Scenario
from harness.stage import Stage

SHAPE = {"transport": "nccl", "trainer": {"ranks": 2}, "pushes": 1}
CPU_OPENER, CUDA_OPENER = (
    "vllm_engine.trainer:open_channel",
    "vllm_engine.trainer.cuda:open_channel",
)


class NoLauncher:
    """Notes what it is to start."""

    def __init__(self, directory: Path) -> None:
        self.specs: dict[str, Mapping[str, Any]] = {}
        self.scratch = SimpleNamespace(subdirectory=lambda name: directory)

    def listener(self, port: int = 0) -> socket.socket:
        return socket.create_server(("127.0.0.1", port))

    async def start(
        self, specs: Sequence[ProcessSpec], *, sockets: Mapping[str, list[socket.socket]]
    ) -> dict[str, Any]:
        self.specs = {spec.name: spec.config for spec in specs}
        for listeners in sockets.values():
            for listener in listeners:
                listener.close()
        return {}


class NoServers:
    """Gives the GPUs that it is asked for as the server."""

    async def acquire(self, *, index: int, gpus: Sequence[str], **asked: Any) -> dict[str, Any]:
        return {"url": f"http://{index}", "asked_for": list(gpus)}


def started(
    scenario: Scenario, gpus: tuple[str, ...], tmp_path: Path
) -> dict[str, Mapping[str, Any]]:
    """Return the configurations of the processes that a run starts, by name."""
    launcher, servers = NoLauncher(tmp_path), NoServers()

    async def run() -> None:
        stage = Stage(
            launcher,  # type: ignore[arg-type]
            default_parts(scenarios=[scenario], gpus=gpus),
            scenario,
            out_dir=tmp_path,
            servers=servers if scenario.engines.kind == "vllm" else None,  # type: ignore[arg-type]
        )
        await stage.prepare()
        await stage.start()
        await stage.http.close()
        stage.record.close()

    asyncio.run(run())
    return launcher.specs


def test_on_gpus(tmp_path: Path) -> None:
    """Each engine's server gets its GPUs, each rank its own, and vLLM's classes real NCCL."""
    scenario = make_scenario(engines={"kind": "vllm", "count": 2}, **SHAPE)
    specs = started(scenario, ("a", "b", "c", "d"), tmp_path)
    for index, gpu in enumerate("ab"):
        engine = specs[f"engine:{index}"]
        assert engine["gpus"] == engine["server"]["asked_for"] == [gpu]
    assert specs["rank:0"]["environment"]["CUDA_VISIBLE_DEVICES"] == "c"
    assert specs["rank:1"]["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    assert {specs[f"rank:{rank}"]["opener"] for rank in (0, 1)} == {CUDA_OPENER}


@pytest.mark.parametrize(("kind", "gpus"), [("vllm", ()), ("fake", ()), ("fake", ("a", "b", "c"))])
def test_on_the_cpu(tmp_path: Path, kind: str, gpus: tuple[str, ...]) -> None:
    """Without GPUs, and on fakes beside real engines, nobody hears of any."""
    trainer = {"ranks": 2, "send_loop": "vllm"}
    scenario = make_scenario(engines={"kind": kind}, **(SHAPE | {"trainer": trainer}))
    specs = started(scenario, gpus, tmp_path)
    assert specs["engine:0"]["gpus"] == []
    assert (specs["rank:0"]["environment"], specs["rank:0"]["opener"]) == ({}, CPU_OPENER)
