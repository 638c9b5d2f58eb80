"""vLLM's workers as threads of this process, and its executor over their reply queues.

vLLM's own: ``CPUWorker`` (every method that an RPC names), ``WorkerWrapperBase``,
``WorkerProc.worker_busy_loop`` and ``_execute_worker_rpc``, ``MultiprocExecutor.collective_rpc``
with its ``get_response`` and ``FutureWrapper``. Ours: the queues (`Ring`), what a model runner is
to these methods (`ModelRunner`), and the attributes that the constructors would have set, since a
constructor would start processes or load a checkpoint.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.worker_base import WorkerWrapperBase

from vllm_engine.in_process.groups import as_worker
from vllm_engine.in_process.model import LlamaForCausalLM, build_model
from vllm_engine.in_process.transfer import IPCWeightTransferEngine, Memory

RING_SLOTS = 10  # ``max_chunks`` of vLLM's MessageQueue: unread messages before a writer blocks
INJECTED = "injected: RPC {} was made to fail"


class Faults:
    """Lets named RPCs of named workers raise, or hang until `release`, the first time each.

    Args:
        failing: RPC -> rank of the worker that raises.
        hanging: RPC -> rank of the worker that hangs.
    """

    def __init__(self, failing: Mapping[str, int], hanging: Mapping[str, int]) -> None:
        self._failing, self._hanging = dict(failing), dict(hanging)
        self._released = threading.Event()

    def raise_in(self, rank: int, rpc: str) -> None:
        """Raise, where this RPC of this worker is to.

        Raises:
            RuntimeError: it is to fail.
        """
        if self._failing.get(rpc) == rank:
            del self._failing[rpc]
            raise RuntimeError(INJECTED.format(rpc))

    def hang_in(self, rank: int, worker: Any) -> None:
        """Let the RPCs of this worker that are to hang do so before vLLM's method runs."""
        for rpc, where in self._hanging.items():
            if where == rank:
                method, struck = getattr(worker, rpc), iter([True])
                setattr(worker, rpc, partial(self._hang_once, struck, method))

    def _hang_once(self, struck: Iterator[bool], method: Any, *args: Any, **kwargs: Any) -> Any:
        if next(struck, False):
            self._released.wait()
        return method(*args, **kwargs)

    def release(self) -> None:
        """Let what hangs go on."""
        self._released.set()


class Ring:
    """One queue of `RING_SLOTS` messages with one reader, in place of a ``MessageQueue``.

    A message is pickled, a full ring blocks its writer, a time-out is a ``TimeoutError`` and a
    ring that was shut down says ``cancelled``: all as in ``shm_broadcast.py``.
    """

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._shut_down = False

    def __len__(self) -> int:
        return len(self._messages)

    def enqueue(self, message: Any) -> None:
        """Append a message once there is room for it.

        Raises:
            RuntimeError: the ring was shut down.
        """
        data = pickle.dumps(message)
        with self._changed:
            self._wait(lambda: len(self._messages) < RING_SLOTS, None)
            self._messages.append(data)
            self._changed.notify_all()

    def dequeue(self, timeout: float | None = None, indefinite: bool = False) -> Any:
        """Return the oldest message.

        Raises:
            TimeoutError: there was none within ``timeout`` seconds.
            RuntimeError: the ring was shut down.
        """
        with self._changed:
            self._wait(lambda: bool(self._messages), timeout)
            message = self._messages.popleft()
            self._changed.notify_all()
        return pickle.loads(message)

    def shutdown(self) -> None:
        """Let whoever waits, now or later, raise."""
        with self._changed:
            self._shut_down = True
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not ready():
            if self._shut_down:
                raise RuntimeError("cancelled")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self._changed.wait(left)
        if self._shut_down:
            raise RuntimeError("cancelled")


class Broadcast:
    """The executor's queue to all workers: one `Ring` each."""

    def __init__(self, rings: list[Ring]) -> None:
        self._rings = rings

    def enqueue(self, message: Any) -> None:
        """Give every worker the message."""
        for ring in self._rings:
            ring.enqueue(message)


class ModelRunner:
    """What ``GPUModelRunner`` is to the worker's weight methods: two models and some caches."""

    def __init__(
        self, model: LlamaForCausalLM, draft: LlamaForCausalLM | None, strike: Callable[[str], None]
    ) -> None:
        self.model = model
        self._draft = draft
        self._strike = strike

    def get_model(self) -> LlamaForCausalLM:
        return self.model

    def get_draft_model(self) -> LlamaForCausalLM | None:
        return self._draft

    def reset_lora_state(self) -> None:
        self._strike("reset_lora_state")

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def reset_mm_cache(self) -> None:
        """There is no such cache; nor is there in a text-only model."""

    def reset_encoder_cache(self) -> None:
        """There is no such cache; nor is there in a text-only model."""


class Worker:
    """One worker: a thread that runs vLLM's busy loop.

    Args:
        rank: tensor-parallel rank.
        vllm_config: the engine's; its ``parallel_config`` has the size.
        seed: of the weights.
        draft: whether there is a draft model.
        cpu_layers: whether the layers follow the rules of a CPU; see `model`.
        memory: the trainer's tensors, or ``None`` for an engine without weight transfer.
        faults: what fails or hangs.
    """

    def __init__(
        self,
        rank: int,
        *,
        vllm_config: Any,
        seed: int,
        draft: bool,
        cpu_layers: bool,
        memory: Memory | None,
        faults: Faults,
    ) -> None:
        self.calls, self.replies = Ring(), Ring()
        self._rank, self._size = rank, vllm_config.parallel_config.world_size
        strike = partial(faults.raise_in, rank)
        with as_worker(rank, self._size), set_current_vllm_config(vllm_config):
            model = build_model(seed, cpu_layers=cpu_layers)
            drafted = build_model(seed, draft=True, cpu_layers=cpu_layers) if draft else None
        self._worker = self._vllm_worker(vllm_config, ModelRunner(model, drafted, strike))
        faults.hang_in(rank, self._worker)
        if memory is not None:
            self._worker.weight_transfer_engine = IPCWeightTransferEngine(
                vllm_config.weight_transfer_config,
                vllm_config,
                torch.device("cpu"),
                model,
                memory=memory,
                gpu_uuid=f"GPU-{rank}",
                strike=strike,
            )
        self._thread = threading.Thread(target=self._run, name=f"worker-{rank}", daemon=True)
        self._thread.start()

    @property
    def active(self) -> bool:
        """Whether vLLM's worker has a session open."""
        return bool(self._worker._weight_update_active)

    def close(self) -> None:
        """End the thread; it must not be held by a fault any more."""
        self.calls.shutdown()
        self.replies.shutdown()
        self._thread.join(5)
        if self._thread.is_alive():
            raise RuntimeError(f"{self._thread.name}: expected to have ended, is still running.")

    def _vllm_worker(self, vllm_config: Any, runner: ModelRunner) -> Any:
        """Return a ``CPUWorker`` with what its ``__init__`` and ``load_model`` would have set."""
        worker = CPUWorker.__new__(CPUWorker)
        worker.vllm_config = vllm_config
        worker.parallel_config = vllm_config.parallel_config
        worker.model_config = None
        worker.speculative_config = None
        if runner.get_draft_model() is not None:
            worker.speculative_config = SimpleNamespace(draft_model_config=_MODEL_CONFIG)
        worker.rank = worker.local_rank = self._rank
        worker.device = torch.device("cpu")
        worker.model_runner = runner
        worker.weight_transfer_engine = None
        worker._weight_update_active = False
        worker._weight_update_is_draft = False
        return worker

    def _run(self) -> None:
        process = WorkerProc.__new__(WorkerProc)
        process.rank = self._rank
        process.worker = WorkerWrapperBase(self._rank, self._rank)
        process.worker.worker = self._worker
        process.worker.mm_receiver_cache = None
        process.use_async_scheduling = False
        process.rpc_broadcast_mq, process.worker_response_mq = self.calls, self.replies
        with as_worker(self._rank, self._size):
            try:
                process.worker_busy_loop()
            except RuntimeError as error:
                if str(error) != "cancelled":  # a ring was shut down: vLLM's workers leave, too
                    raise


_MODEL_CONFIG = SimpleNamespace(dtype=torch.float32)  # read for attention layers, of which none is


def build_executor(vllm_config: Any, workers: list[Worker]) -> Any:
    """Return vLLM's executor over these workers."""
    executor = MultiprocExecutor.__new__(MultiprocExecutor)
    executor.vllm_config = vllm_config
    executor.parallel_config = vllm_config.parallel_config
    executor.world_size = len(workers)
    executor.is_failed = False
    executor.failure_callback = None
    executor.rpc_broadcast_mq = Broadcast([worker.calls for worker in workers])
    executor.response_mqs = [worker.replies for worker in workers]
    executor.futures_queue = deque()
    executor.sleeping_tags = set()
    executor.kv_output_aggregator = executor.ec_output_aggregator = None
    return executor
