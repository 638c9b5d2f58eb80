"""vLLM's own API server as a process of the launcher.

``main`` is forked from a zygote that has imported `PRELOAD`, serves on the socket that it is given,
and forks the engine core, which forks the workers. All of them carry the launcher's mark and are in
its process group, so that none outlives the server; and what they leave in shared memory or in
temporary files lies in the server's scratch directory.

Source: vLLM 0.32, ``entrypoints/launchers/api_server/entry.py`` (``run_server_worker``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import partial
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

from harness.contracts import Channel, Json
from harness.gpus import NCCL_ON_LOOPBACK, VISIBLE
from vllm_engine import plugin
from vllm_engine.tiny_model import MAX_TOKENS

# The version whose source `vllm_engine` and `fakes` were read from and checked against. Another one
# may work, but its session rules are unknown until the conformance suite has run on it.
CHECKED_VERSION = "0.32.0"
# What a server's processes would import otherwise, each for itself. Not what changes torch when it
# is imported (``vllm.v1.worker.cpu_worker``, our backends): the zygote forks other processes too.
PRELOAD = (
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.openai.chat_completion.batch_serving",
    "vllm.model_executor.models.config",
    "vllm.model_executor.models.llama",
    "vllm.renderers.hf",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.metrics.loggers",
    "vllm.v1.sample.rejection_sampler",
    "prometheus_fastapi_instrumentator",
    "vllm_engine.extension",
    "vllm_engine.server",
)
MODEL_NAME = "tiny"
EXIT_DEAD = 1
HEALTH_POLL_S = 0.02
KV_CACHE_BYTES = 64 << 20
NAP_S = 0.0005  # what a message may be late by
RECHECK_MS = 50  # and by this, where its wake-up is lost


# float32 as on the CPU, without TF32 (`served.TOLERANCE`), in every place that could choose it.
CUDA_ENVIRONMENT = {
    "VLLM_FLOAT32_MATMUL_PRECISION": "highest",  # torch's (v1/worker/gpu_worker.py 210)
    "NVIDIA_TF32_OVERRIDE": "0",  # cuBLAS's, whatever torch is told
    "TRITON_F32_DEFAULT": "ieee",  # of ``tl.dot`` (triton/language/core.py), for attention
    # The trainer's IPC handles come pickled (distributed/weight_transfer/ipc_engine.py 86).
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    **NCCL_ON_LOOPBACK,
}
CUDA_OPTIONS = {
    "weight-transfer-config": '{"backend": "nccl"}',  # until the first reset
    # One worker would be in the core's process; vLLM's CPU platform sets the same (cpu.py 334).
    "distributed-executor-backend": "mp",
    # The first of vLLM's that takes float32 (platforms/cuda.py 163 and 176, v1/attention/backends).
    "attention-backend": "TRITON_ATTN",
    # What must be free at the start, beside other servers (v1/worker/utils.py 724).
    "gpu-memory-utilization": "0.05",
    # Nothing is compiled, but with two workers on a Hopper GPU vLLM would import flashinfer for it,
    # which initialises CUDA before the fork (flashinfer/compilation_context.py 105).
    "compilation-config": '{"pass_config": {"fuse_allreduce_rms": false}}',
}


def main(config: Mapping[str, Json], channel: Channel, sockets: list[socket.socket]) -> None:
    """Serve one model until the channel closes or the engine core dies.

    Tells the launcher ``{"progress": "..."}`` on the way up, and then, once, ``{"ready": true,
    "pids": {"server": n, "core": n, "workers": [n, ...]}}``.

    Args:
        config: ``workers`` (tensor-parallel size), ``model_dir``, ``agents_dir`` (existing; its
            path is short enough for a socket's), ``scratch`` (existing; likewise), ``seed`` (of
            the weights that it starts with) and, optionally, ``gpus`` (of its workers, as
            ``CUDA_VISIBLE_DEVICES`` names them; none: it runs on the CPU) and ``load_format``
            (vLLM's; where it is not ``dummy``, the weights are those of ``model_dir``).
        channel: the launcher's; nothing is taken from it.
        sockets: one TCP listener, bound and listening.
    """
    os.environ.update(environment(config))
    _keep_files_in(Path(config["scratch"]))
    # A checkout that is on the path only has no entry points: forked processes inherit this.
    plugin.register()
    threading.Thread(target=_leave_with, args=(channel,), name="channel", daemon=True).start()
    import uvloop

    if uvloop.run(_serve(config, channel, sockets[0])):
        sys.exit("The engine core has died.")


def environment(config: Mapping[str, Json]) -> dict[str, str]:
    """Return the environment variables that a server is started with."""
    gpus = config.get("gpus", ())
    return {
        plugin.ENABLED_BY: "1",
        "VLLM_SERVER_DEV_MODE": "1",  # the routes of weight transfer exist only then
        "VLLM_WORKER_MULTIPROC_METHOD": "fork",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # workers would be pinned to the same cores
        "OMP_NUM_THREADS": "1",
        "VLLM_HOST_IP": "127.0.0.1",  # nothing listens beyond loopback
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_RPC_BASE_PATH": config["scratch"],
        "TMPDIR": config["scratch"],
        **({VISIBLE: ",".join(gpus), **CUDA_ENVIRONMENT} if gpus else {}),
    }


def arguments(config: Mapping[str, Json]) -> list[str]:
    """Return the command-line options that a server is started with, but for its address."""
    options = {
        "model": config["model_dir"],
        "served-model-name": MODEL_NAME,
        "tensor-parallel-size": str(config["workers"]),
        "load-format": config.get("load_format", "dummy"),
        "dtype": "float32",
        "generation-config": "vllm",
        # With both, vLLM skips its warm-up: nothing is compiled, no memory is measured.
        "enforce-eager": None,
        "kv-cache-memory-bytes": str(KV_CACHE_BYTES),
        "max-model-len": str(MAX_TOKENS),
        "max-num-batched-tokens": str(MAX_TOKENS),
        "max-num-seqs": "8",
        "skip-tokenizer-init": None,
        "return-tokens-as-token-ids": None,  # log-probabilities name tokens, without a tokenizer
        "enable-scale-out": None,  # the route that says which weights made each token
        "disable-uvicorn-access-log": None,
        "weight-transfer-config": '{"backend": "gloo"}',
        "worker-extension-cls": "vllm_engine.extension.WorkerExtension",
        **(CUDA_OPTIONS if config.get("gpus") else {}),
    }
    return [
        part
        for name, value in options.items()
        for part in ([f"--{name}"] if value is None else [f"--{name}", value])
    ]


def _keep_files_in(scratch: Path) -> None:
    """Put temporary files and shared memory where the launcher's scratch directory removes them.

    vLLM's queues are ``multiprocessing`` shared memory, which a killed process leaves in
    ``/dev/shm`` for ever. Python's module opens it by name through two calls of its C half.
    """
    tempfile.tempdir = str(scratch)

    class Files:
        @staticmethod
        def shm_open(name: str, flags: int, mode: int = 0o600) -> int:
            return os.open(scratch / name.lstrip("/"), flags | os.O_CLOEXEC, mode)

        @staticmethod
        def shm_unlink(name: str) -> None:
            os.unlink(scratch / name.lstrip("/"))

    shared_memory._posixshmem = Files  # type: ignore[attr-defined]


def remove_shared_memory(scratch: Path) -> None:
    """Remove the names of the shared memory that workers of one server exchange tensors in.

    vLLM's C++ puts it into ``/dev/shm``, named after the rendezvous file of the workers' process
    group. Mapped memory stays until the last process has ended.
    """
    for rendezvous in scratch.glob("vllm_dist_*"):
        for path in Path("/dev/shm").glob(f"{rendezvous.name}-*"):
            path.unlink(missing_ok=True)


def _leave_with(channel: Channel) -> None:
    """End this process when the launcher has gone; the zygote ends its children."""
    while channel.receive() is not None:
        pass
    os._exit(0)


async def _serve(config: Mapping[str, Json], channel: Channel, sock: socket.socket) -> bool:
    """Run the server to its end; return whether its engine core had died."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.api_server.entry import build_and_serve
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.utils.system_utils import decorate_logs
    from vllm.v1.engine.async_llm import AsyncLLM

    decorate_logs("APIServer")
    channel.send({"progress": "reading the configuration"})
    host, port = sock.getsockname()
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(
        [*arguments(config), "--host", host, "--port", str(port)]
    )
    validate_parsed_serve_args(args)
    vllm_config = AsyncEngineArgs.from_cli_args(args).create_engine_config(
        usage_context=UsageContext.API_SERVER
    )
    if config.get("gpus"):
        _require_cuda()
    # vLLM's CPU platform has just overwritten it: fresh interpreters would import all of vLLM
    # again, and would not be ours.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    _compile_nothing()
    _wait_gently()
    channel.send({"progress": "starting the engine core and its workers"})
    client = AsyncLLM.from_vllm_config(vllm_config)
    try:
        channel.send({"progress": "loading weights"})
        pids = await _begin(client, config)
        announcing = asyncio.create_task(_announce(port, channel, pids))
        await (await build_and_serve(client, f"http://{host}:{port}", sock, args))
        announcing.cancel()
    finally:
        dead: bool = client.errored
        client.shutdown()
    return dead


def _require_cuda() -> None:
    """Leave unless vLLM would run on GPUs, in processes that it can fork from this one.

    Source: vLLM 0.32, ``utils/system_utils.py`` (``_maybe_force_spawn``).
    """
    import torch
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        sys.exit(
            f"expected vLLM's CUDA platform, found {type(current_platform).__name__}. Install the "
            "build for CUDA, as `nox -s gpu_night` does, and see that nvidia-smi shows the GPUs."
        )
    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if in_use or torch.cuda._is_in_bad_fork():
        sys.exit(
            "expected CUDA not to be in use before the engine core is forked, found it initialised "
            "in this process or its parent. See what the launcher preloads."
        )


def _compile_nothing() -> None:
    """Let ``torch.compile`` return its function as it is.

    vLLM compiles a helper of log-probabilities even under ``--enforce-eager``: 25 s of C++ compiler
    in the first request that asks for them.
    """
    import torch._dynamo

    torch._dynamo.config.disable = True


def _wait_gently() -> None:
    """Change how a process waits for a message of another: by naps, and never for long.

    vLLM's readers of shared memory look again and again for a second after each message. With a few
    tokens a second every worker and core would keep a CPU busy, and starve the harness beside them.
    After that second they wait to be woken, and look anyway every 5 s, since a wake-up may get
    lost: long enough to miss a scenario's time-outs.
    """
    from vllm.distributed.device_communicators import shm_broadcast

    shm_broadcast.sched_yield = partial(time.sleep, NAP_S)
    shm_broadcast.SHM_READER_RECHECK_INTERVAL_MS = RECHECK_MS


async def _begin(client: Any, config: Mapping[str, Json]) -> dict[str, Json]:
    """Start the workers' agents and load the first weights; return every process's id."""
    workers = await client.collective_rpc("resync_chaos_begin", args=(config["agents_dir"],))
    remove_shared_memory(Path(config["scratch"]))  # every worker has mapped it
    if config.get("load_format", "dummy") == "dummy":
        backend = "cuda_nccl" if config.get("gpus") else "gloo"
        reset = {"backend": backend, "seed": config["seed"]}
        await client.collective_rpc("resync_chaos_reset", kwargs=reset)
    core = client.engine_core.resources.engine_manager.processes[0].pid
    return {"server": os.getpid(), "core": core, "workers": workers}


async def _announce(port: int, channel: Channel, pids: Mapping[str, Json]) -> None:
    """Tell the launcher as soon as ``/health`` answers."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            status = (await reader.read()).split(b" ", 2)[1:2]
            writer.close()
            if status == [b"200"]:
                channel.send({"ready": True, "pids": pids})
                return
        await asyncio.sleep(HEALTH_POLL_S)
