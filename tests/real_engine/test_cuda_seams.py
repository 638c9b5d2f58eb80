"""vLLM's classes with the fault points of a run on GPUs, as far as a machine without one shows."""

from __future__ import annotations

import importlib.util
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.distributed.weight_transfer import ipc_engine, nccl_common, nccl_engine
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from fakes.send_loops import ChannelSettings
from harness.contracts import Json, NoFaults, no_record
from harness.gpus import VISIBLE
from vllm_engine import backends, plugin
from vllm_engine.backends import Visits
from vllm_engine.gateway import ON_CPU, ON_GPUS
from vllm_engine.server import arguments
from vllm_engine.trainer import cuda, seams

TENSORS = [("a", torch.zeros(2, 3)), ("b", torch.ones(4))]


class Points(NoFaults):
    """Notes the points that are reached."""

    def __init__(self) -> None:
        self.reached: list[tuple[str, Json]] = []

    def reach(self, point: str, /, **where: Json) -> None:
        self.reached.append((point, where.get("tensor")))


class Source:
    """Two tensors."""

    def metadata(self) -> list[Any]:
        return [SimpleNamespace(name=n, dtype=t.dtype, shape=tuple(t.shape)) for n, t in TENSORS]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(TENSORS)


class Client:
    """Answers everything at once; notes what it is asked."""

    num_workers = 1

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.asked.append(name)


class Group:
    """Stands for a PyNccl communicator: notes what is broadcast."""

    def __init__(self, *, disabled: bool = False) -> None:
        self.disabled = disabled
        self.sent: list[list[int]] = []

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> None:
        assert (src, stream) == (0, STREAM)
        self.sent.append(list(tensor.shape))

    def destroy(self) -> None:
        self.disabled = True


STREAM = SimpleNamespace(synchronize=lambda: None)


def settings(points: Points, **changes: Any) -> ChannelSettings:
    given: dict[str, Any] = {
        "transport": "nccl",
        "packed": False,
        "rank": 0,
        "total_workers": 1,
        "rendezvous_s": 1.0,
        "scratch_dir": Path("/nowhere"),
        "injector": points,
        "record": no_record,
    }
    return ChannelSettings(**given | changes)


@pytest.fixture
def vllm_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give vLLM's modules back what the code under test installs into them."""
    stream = seams.StandIn(torch.cuda, current_stream=lambda: STREAM, is_available=lambda: True)
    monkeypatch.setattr(nccl_engine, "torch", seams.StandIn(torch, cuda=stream))
    for name in ("open_trainer_endpoint", "ThreadPoolExecutor"):
        monkeypatch.setattr(nccl_engine, name, getattr(nccl_engine, name))
    monkeypatch.setattr(ipc_engine, "torch", torch)


@pytest.mark.usefixtures("vllm_as_it_was")
def test_the_senders_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own send loop passes every point of the trainer's side, in the order of the fakes."""
    points, client, group = Points(), Client(), Group()
    monkeypatch.setattr(nccl_common, "trainer_init", lambda init_info: group)
    monkeypatch.setenv(VISIBLE, "0")
    monkeypatch.setattr(cuda, "_device", lambda rank, gpu: torch.device("cpu"))
    engine = cuda.open_channel(settings(points), client, Source())
    assert points.reached == [("rank.bind", None), ("rank.rendezvous", None)]
    points.reached.clear()
    engine.send_weights()
    in_turn = [each for each in points.reached if each[0] == "rank.broadcast"]
    assert in_turn == [("rank.broadcast", "a"), ("rank.broadcast", "b")]
    # One of them is reached in the thread of the update.
    others = {point for point, _ in points.reached} - {"rank.broadcast"}
    assert others == {"rank.update_sent", "rank.update_call"}
    assert group.sent == [[2, 3], [4]]
    assert client.asked[0] == "init_weight_transfer_engine"
    assert client.asked[1] == "start_weight_update"
    assert client.asked[-1] == "finish_weight_update"
    engine.shutdown()
    assert group.disabled


@pytest.mark.usefixtures("vllm_as_it_was")
def test_a_communicator_that_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NCCL vLLM makes one without a word; a push over it would be nobody's weights."""
    monkeypatch.setattr(nccl_common, "trainer_init", lambda init_info: Group(disabled=True))
    with (
        seams.acting_for(seams.Channel(settings(Points()))),
        pytest.raises(RuntimeError, match=r"^rank 0: expected an NCCL communicator, found one"),
    ):
        cuda._open_endpoint(SimpleNamespace(world_size=2))
    with seams.acting_for(seams.Channel(settings(Points()))):  # every engine was left out
        assert cuda._open_endpoint(SimpleNamespace(world_size=1)).disabled


@pytest.mark.usefixtures("vllm_as_it_was")
def test_a_rank_without_a_gpu_only_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks CUDA for nothing, and neither talks to the engines nor opens a channel."""
    monkeypatch.setenv(VISIBLE, "")
    client = Client()
    engine = cuda.open_channel(settings(Points(), rank=1), client, Source())
    engine.send_weights()
    assert client.asked == []
    assert isinstance(engine.source, Source)


def test_a_rank_on_a_torch_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which GPU it was to get, and does not go on without."""
    monkeypatch.setenv(VISIBLE, "GPU-1a")
    with pytest.raises(RuntimeError) as caught:
        cuda.open_channel(settings(Points()), Client(), Source())
    assert str(caught.value) == (
        "rank 0: expected CUDA on its GPU (CUDA_VISIBLE_DEVICES=GPU-1a), found: Torch not compiled "
        "with CUDA enabled Install the build for CUDA, as `nox -s gpu_night` does, and see that "
        "nvidia-smi shows the GPU."
    )


def test_tensors_are_copied_as_they_are_yielded() -> None:
    """Metadata is passed on; each tensor is on the device once vLLM gets it."""
    source = cuda.OnGpu(Source(), torch.device("meta"))
    assert [meta.name for meta in source.metadata()] == ["a", "b"]
    for _ in range(2):
        found = [(name, tensor.device.type, list(tensor.shape)) for name, tensor in source]
        assert found == [("a", "meta", [2, 3]), ("b", "meta", [4])]


def worker_end(name: str) -> Any:
    """Return a worker's engine without the server around it."""
    module, cls = plugin.BACKENDS[ON_GPUS[name]]
    engine: Any = object.__new__(getattr(importlib.import_module(module), cls))
    engine.parallel_config = engine.model = engine._default_model = None
    return engine


def test_a_workers_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """The communicator is vLLM's; a tensor's point is visited before it is broadcast."""
    points, group, engine = Points(), Group(), worker_end("nccl")
    monkeypatch.setattr(backends, "reach", points.reach)
    monkeypatch.setattr(nccl_engine, "worker_init_process_group", lambda info, parallel: group)
    engine.init_transfer_engine(
        nccl_common.NCCLWeightTransferInitInfo(
            master_address="127.0.0.1", master_port=1, rank_offset=1, world_size=2
        )
    )
    assert engine.initialised
    assert engine.model_update_group is group
    engine.visits = Visits(["a"], "target")
    group.broadcast(torch.zeros(3), src=0, stream=STREAM)
    assert points.reached == [("worker.init", None), ("worker.receive", "a")]
    assert group.sent == [[3]]


def test_a_worker_that_would_receive_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NCCL its init fails, instead of every update succeeding."""
    engine = worker_end("nccl")
    monkeypatch.setattr(
        nccl_engine, "worker_init_process_group", lambda info, parallel: Group(disabled=True)
    )
    info = SimpleNamespace(packed=True, packed_buffer_size_bytes=1, packed_num_buffers=1)
    with pytest.raises(RuntimeError, match=r"^expected an NCCL communicator, found one that rece"):
        engine.init_transfer_engine(info)
    assert not engine.initialised


def test_ipc_has_no_rendezvous(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker notes whether the trainer packs, and counts as initialised."""
    engine = worker_end("ipc")
    engine.init_transfer_engine(SimpleNamespace(packed=True))
    assert (engine.packed, engine.initialised) == (True, True)


def test_backends_are_registered() -> None:
    """Each transport has a worker's end on the CPU and one on GPUs."""
    assert ON_CPU.keys() == ON_GPUS.keys() == {"nccl", "ipc"}
    assert {*ON_CPU.values(), *ON_GPUS.values()} == plugin.BACKENDS.keys()


def test_vllm_knows_the_options() -> None:
    """Its own parser takes what a server on GPUs is started with."""
    config = {"model_dir": "/m", "workers": 2, "scratch": "/s", "seed": 0, "gpus": ["0", "1"]}
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments(config))
    assert parsed.distributed_executor_backend == "mp"
    assert parsed.attention_backend == "TRITON_ATTN"
    assert parsed.weight_transfer_config.backend == "nccl"
    assert parsed.gpu_memory_utilization == 0.05
    assert parsed.compilation_config.pass_config.fuse_allreduce_rms is False


# fmt: off
POINTED_AT = [
    # module                                    lines         what is there
    ("vllm.distributed.weight_transfer.nccl_engine", (313,),  "open_trainer_endpoint("),
    ("vllm.distributed.weight_transfer.nccl_engine", (393,),  "self.model_update_group.broadcast("),
    ("vllm.distributed.weight_transfer.packed_tensor", (185,), "group.broadcast("),
    ("vllm.distributed.weight_transfer.ipc_engine", (351, 372), "torch.distributed.barrier()"),
    ("vllm.distributed.weight_transfer.ipc_engine", (86,),    "VLLM_ALLOW_INSECURE_SERIALIZATION"),
    ("vllm.distributed.weight_transfer.ipc_engine", (360,),   "m.update(rank_handles[param_idx])"),
    ("vllm.distributed.device_communicators.pynccl", (127,),  "VLLM_DISABLE_PYNCCL"),
    ("vllm.distributed.device_communicators.pynccl", (129, 137, 539), "self.disabled"),
    ("vllm.distributed.utils",                  (471,),       "store_timeout: int = 300"),
    ("vllm.v1.worker.gpu_worker",               (210,),       "VLLM_FLOAT32_MATMUL_PRECISION"),
    ("vllm.v1.worker.utils",                    (724,),       "requested_memory"),
    ("vllm.platforms.cuda",                     (163, 176),   "AttentionBackendEnum.TRITON_ATTN"),
]
# fmt: on


@pytest.mark.parametrize(("module", "lines", "there"), POINTED_AT)
def test_what_the_comments_point_at(module: str, lines: tuple[int, ...], there: str) -> None:
    """The lines of vLLM that a run on GPUs relies on are those that are on record."""
    spec = importlib.util.find_spec(module)  # not imported: that of CUDA is not there
    assert spec is not None
    source = Path(spec.origin or "").read_text().splitlines()
    assert [source[line - 1] for line in lines if there not in source[line - 1]] == []


def test_float32_is_left_to_triton() -> None:
    """Of vLLM's attention for CUDA the first that takes float32 is Triton's, which obeys us."""
    folder = Path(importlib.import_module("vllm").__file__ or "").parent
    for name, takes in (("flash_attn", False), ("flashinfer", False), ("triton_attn", True)):
        text = (folder / "v1/attention/backends" / f"{name}.py").read_text()
        listed = re.search(r"supported_dtypes: ClassVar\[list\[torch.dtype\]\] = \[([^]]*)\]", text)
        assert listed is not None
        assert ("torch.float32" in listed[1]) == takes, name
    triton = importlib.util.find_spec("triton")
    assert triton is not None
    core = (Path(triton.origin or "").parent / "language/core.py").read_text()
    assert 'input_precision = knobs.language.fp32_default or ("tf32"' in core


def test_torch_says_what_it_was_built_for() -> None:
    """As `require_cuda` reads it: this build has no CUDA."""
    version = Path(torch.__file__).with_name("version.py")
    assert runpy.run_path(str(version))["cuda"] == torch.version.cuda
