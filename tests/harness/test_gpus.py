"""Which process of a scenario gets which GPU, what needs more, and what the driver lists."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from real_runs import make_scenario

from harness.errors import UsageError
from harness.gpus import ON_CPU, gpus_needed, gpus_wanted, place, visible_gpus, why_not
from harness.scenario import Scenario

ROOT = Path(__file__).parents[2]
TWO = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1a)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2b)\n"
MIG = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1a)\n  MIG 1g.10gb Device 0: (UUID: MIG-3c)\n"


def scenario(transport: str, ranks: int, engines: int, workers: int = 1, **more: Any) -> Scenario:
    return make_scenario(
        "one",
        transport=transport,
        trainer={"ranks": ranks, "tensor_parallel": 1, **more},
        engines={"kind": "vllm", "count": engines, "workers": workers},
    )


# fmt: off
PLACES = [
    # id                    transport, ranks, engines, workers; GPUs; engines' GPUs; ranks' GPUs
    ("nccl-one",            ("nccl", 1, 1, 1), 2, ["0"],              ["1"]),
    ("nccl-peers-have-none", ("nccl", 4, 2, 1), 4, ["0", "1"],         ["2", "", "", ""]),
    ("nccl-spare",          ("nccl", 2, 1, 2), 8, ["01"],             ["2", ""]),
    ("nccl-large",          ("nccl", 2, 3, 2), 8, ["01", "23", "45"], ["6", ""]),
    ("ipc-beside",          ("ipc", 2, 1, 2),  8, ["01"],             ["0", "1"]),
    ("ipc-two-engines",     ("ipc", 4, 2, 2),  8, ["01", "23"],       ["0", "1", "2", "3"]),
    ("ipc-more-ranks",      ("ipc", 4, 2, 1),  8, ["0", "1"],         ["0", "1", "0", "1"]),
    ("ipc-more-workers",    ("ipc", 2, 3, 1),  8, ["0", "1", "0"],    ["0", "1"]),
    ("ipc-odd",             ("ipc", 3, 2, 2),  8, ["01", "20"],       ["0", "1", "2"]),
    ("ipc-shared",          ("ipc", 2, 2, 1),  1, ["0", "0"],         ["0", "0"]),
]
# fmt: on


@pytest.mark.parametrize(
    ("shape", "num_gpus", "engines", "ranks"),
    [case[1:] for case in PLACES],
    ids=[case[0] for case in PLACES],
)
def test_place(
    shape: tuple[str, int, int, int], num_gpus: int, engines: list[str], ranks: list[str]
) -> None:
    """A communicator has one rank a GPU; a worker that maps memory has a rank beside it."""
    given = scenario(*shape)
    assert why_not(given, num_gpus) is None
    placement = place(given, [str(number) for number in range(num_gpus)])
    assert ["".join(gpus) for gpus in placement.engines] == engines
    assert list(placement.ranks) == ranks


@pytest.mark.parametrize("transport", ["nccl", "ipc"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("engines", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_any_shape(transport: str, ranks: int, engines: int, workers: int) -> None:
    """Wherever a scenario fits, no two that must not share a GPU do, and every worker is fed."""
    given = scenario(transport, ranks, engines, workers)
    for num_gpus in range(9):
        if why_not(given, num_gpus) is not None:
            assert num_gpus < gpus_needed(given) or workers > ranks
            continue
        placement = place(given, [f"g{number}" for number in range(num_gpus)])
        assert [len(set(gpus)) for gpus in placement.engines] == [workers] * engines
        of_workers = [gpu for gpus in placement.engines for gpu in gpus]
        of_ranks = list(filter(None, placement.ranks))
        assert len(placement.ranks) == ranks
        if transport == "nccl":
            assert placement.ranks[0] != ""
            assert len({*of_workers, *of_ranks}) == engines * workers + 1
        else:
            assert len(of_ranks) == ranks
            assert set(of_workers) <= set(of_ranks)
        assert len({*of_workers, *of_ranks}) <= gpus_wanted(given)


def test_on_the_cpu() -> None:
    """Without GPUs nothing is placed, and neither are fakes that run beside real engines."""
    assert place(scenario("nccl", 2, 1), []) == ON_CPU
    assert place(make_scenario(), ["0", "1"]) == ON_CPU
    assert ON_CPU.of_engine(1) == ()
    assert ON_CPU.of_rank(1) == {}


def test_environments() -> None:
    """A rank sees its own GPU alone, or none; NCCL stays on this machine."""
    placement = place(scenario("nccl", 2, 1), ["GPU-1a", "GPU-2b"])
    assert placement.of_engine(0) == ("GPU-1a",)
    loopback = {"NCCL_SOCKET_IFNAME": "lo"}
    assert placement.of_rank(0) == {"CUDA_VISIBLE_DEVICES": "GPU-2b", **loopback}
    assert placement.of_rank(1) == {"CUDA_VISIBLE_DEVICES": "", **loopback}


# fmt: off
TOO_FEW = [
    (scenario("nccl", 2, 2, 1), 2,
     "expected 3 GPUs (one for each worker and one for the sender), found 2. "
     "Take a machine with more, or run it on the CPU."),
    (scenario("ipc", 2, 2, 2), 1,
     "expected 2 GPUs (one for each worker of an engine), found 1. "
     "Take a machine with more, or run it on the CPU."),
    (scenario("ipc", 1, 1, 2), 8,
     "expected a trainer rank beside each of an engine's 2 workers, since CUDA IPC is within a "
     "GPU, found 1. Raise trainer.ranks, or run it on the CPU."),
    (scenario("nccl", 2, 1, send_loop="ours"), 8,
     "expected vLLM's own send loops on a GPU, found trainer.send_loop: ours. "
     "Leave the key out, or run it on the CPU."),
]
# fmt: on


@pytest.mark.parametrize(("given", "num_gpus", "why"), TOO_FEW)
def test_why_not(given: Scenario, num_gpus: int, why: str) -> None:
    """What cannot run says what it needs, what there is and what to do."""
    assert why_not(given, num_gpus) == why


def driver(tmp_path: Path, printed: str, status: int = 0) -> Mapping[str, str]:
    """Write an ``nvidia-smi``; return the PATH that finds it."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{printed.rstrip()}\nEND\nexit {status}\n")
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


# fmt: off
LISTED = [
    # id            printed, status            CUDA_VISIBLE_DEVICES  found
    ("all",         (TWO, 0),                  None,                 ("0", "1")),
    ("mig",         (MIG, 0),                  None,                 ("0",)),
    ("some",        (TWO, 0),                  "1",                  ("1",)),
    ("uuids",       (TWO, 0),                  "GPU-2b, GPU-1a",     ("GPU-2b", "GPU-1a")),
    ("hidden",      (TWO, 0),                  "",                   ()),
    ("cut-short",   (TWO, 0),                  "1,-1,0",             ("1",)),
    ("none",        ("No devices found.", 0),  None,                 ()),
    ("none-6",      ("No devices were found", 6), "0",               ()),
]
# fmt: on


@pytest.mark.parametrize(
    ("answer", "given", "found"), [case[1:] for case in LISTED], ids=[case[0] for case in LISTED]
)
def test_visible_gpus(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: tuple[str, int],
    given: str | None,
    found: tuple[str, ...],
) -> None:
    """Those that the driver lists, or those of them that this process was given."""
    monkeypatch.setenv("PATH", driver(tmp_path, *answer)["PATH"])
    assert visible_gpus({} if given is None else {"CUDA_VISIBLE_DEVICES": given}) == found


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without nvidia-smi has no GPU, whatever its environment says."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}) == ()


def test_broken_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with GPUs that nobody can use is not taken for one without."""
    found = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    path = driver(tmp_path, found, 9)["PATH"]
    monkeypatch.setenv("PATH", path)
    with pytest.raises(UsageError) as caught:
        visible_gpus({})
    said = (
        f"{tmp_path}/nvidia-smi -L: expected the machine's GPUs, found status 9: {found} "
        "Repair the driver, or take nvidia-smi off PATH to run on the CPU."
    )
    assert str(caught.value) == said
    asked = asked_as_nox_does(path)
    assert (asked.returncode, asked.stderr.strip()) == (2, said)


def test_asked_from_outside(tmp_path: Path) -> None:
    """The noxfile learns their number from a program that imports nothing of ours but itself."""
    assert asked_as_nox_does(driver(tmp_path, TWO)["PATH"]).stdout == "2\n"


def asked_as_nox_does(path: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", BARE.format(root=str(ROOT))]
    return subprocess.run(command, env={"PATH": path}, capture_output=True, check=False, text=True)


# Without site-packages, as nox's own interpreter may be.
BARE = """
import runpy, sys
sys.path[:] = [path for path in sys.path if "-packages" not in path] + [{root!r}]
runpy.run_module("harness.gpus", run_name="__main__")
"""
