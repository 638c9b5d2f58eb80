"""Stand-ins around a trainer engine: workers in processes, a client that drives them, a source."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import torch

from fakes.data_plane.receivers import make_worker_transfer
from fakes.megatron.source import ParamMeta

Trace = list[str]


def worker(pipe: Connection, backend: str, index: int, num_workers: int) -> dict[str, str]:
    """Serve a `PipeClient` until it says stop; return the SHA-256 of each tensor received."""
    transfer = make_worker_transfer(
        backend, rank=index, world_size=num_workers, gpu_uuid=f"GPU-{index}", rendezvous_s=10
    )
    received: dict[str, str] = {}
    while True:
        call, payload = pipe.recv()
        try:
            match call:
                case "init":
                    transfer.init(payload)
                case "update":
                    for name, tensor in transfer.receive(payload):
                        received[name] = hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
                case "stop":
                    return received
            pipe.send(None)
        except Exception as error:
            pipe.send(str(error))


class PipeClient:
    """vLLM's four methods over the workers' pipes; notes each call.

    ``refuse`` names the calls that the engine refuses, without the workers hearing of them. It
    refuses an update only once ``pass_began``, as no answer over HTTP comes sooner.
    """

    def __init__(
        self,
        pipes: Sequence[Connection],
        trace: Trace,
        refuse: Sequence[str] = (),
        pass_began: threading.Event | None = None,
    ) -> None:
        self._pipes = pipes
        self._trace = trace
        self._refuse = refuse
        self._pass_began = pass_began
        self._pool = ThreadPoolExecutor(max(len(pipes), 1))

    def _call(self, name: str, send: Callable[[], object] = lambda: None) -> None:
        self._trace.append(f"client.{name}")
        if name in self._refuse:
            if name == "update" and self._pass_began is not None:
                self._pass_began.wait()
            raise RuntimeError(f"{name} refused")
        send()

    def _ask(self, call: str, payload: Any) -> None:
        def ask(pipe: Connection) -> str | None:
            pipe.send((call, payload))
            answer: str | None = pipe.recv()
            return answer

        errors = [error for error in self._pool.map(ask, self._pipes) if error]
        if errors:
            raise RuntimeError(errors[0])

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call("init", lambda: self._ask("init", init_info))

    def start_weight_update(self) -> None:
        self._call("start")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._call("update", lambda: self._ask("update", update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish")

    def stop(self) -> None:
        """Let the workers return."""
        for pipe in self._pipes:
            pipe.send(("stop", None))


class FiveTensors:
    """Five tensors of 64 bytes, of a trainer of one rank: its gathers are only noted."""

    draft = False

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.began = threading.Event()  # a tensor was asked for

    def metadata(self) -> list[ParamMeta]:
        self._trace.append("metadata")
        return [ParamMeta(f"w{index}", torch.float32, (16,)) for index in range(5)]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for index in range(5):
            self._trace.append(f"gather w{index}")
            self.began.set()
            yield f"w{index}", torch.full((16,), float(index))
