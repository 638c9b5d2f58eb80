"""vLLM's engine core as a thread of this process, and its front end's client to it.

vLLM's own: ``EngineCoreProc.run_busy_loop`` with its utility calls, pause, sleep and wake-up,
``Scheduler``'s pause state, ``AsyncLLM``, ``AsyncMPClient`` and the encoding of their messages.
Ours: the sockets between client and core (`_Input`, `_Output` and the two threads' loops that
stand in for ``process_input_sockets`` and ``process_output_sockets``), a scheduler that never has
a request, and the attributes that the constructors would have set.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from types import SimpleNamespace
from typing import Any

import zmq
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequestType
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core import EngineCoreProc, EngineShutdownState
from vllm.v1.engine.core_client import AsyncMPClient, BackgroundResources
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

ENGINE = b"engine-0"


class Core:
    """The engine core in its thread.

    Args:
        vllm_config: the engine's.
        executor: see `workers.build_executor`.
        deliver: takes the frames of each message to the front end; called in our thread.
    """

    def __init__(self, vllm_config: Any, executor: Any, deliver: Any) -> None:
        self.proc = _core_proc(vllm_config, executor)
        self._deliver = deliver
        self._encoder = MsgpackEncoder()
        self.proc.output_thread = threading.Thread(target=self._put_out, daemon=True)
        self._thread = threading.Thread(target=self._run, name="engine-core", daemon=True)
        self.proc.output_thread.start()
        self._thread.start()

    def close(self) -> None:
        """End both threads, as vLLM's signal handler does."""
        self.proc.shutdown_state = EngineShutdownState.REQUESTED
        self.proc.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))
        self._thread.join(5)
        self.proc.output_queue.put_nowait(EngineCoreProc.ENGINE_CORE_DEAD)
        self.proc.output_thread.join(5)
        if self._thread.is_alive() or self.proc.output_thread.is_alive():
            raise RuntimeError("engine core: expected to have ended, is still running.")

    def _run(self) -> None:
        try:
            self.proc.run_busy_loop()
        except SystemExit:
            pass  # how vLLM's busy loop ends
        except Exception:
            self.proc._send_engine_dead()

    def _put_out(self) -> None:
        while True:
            item = self.proc.output_queue.get()
            if item == EngineCoreProc.ENGINE_CORE_DEAD:
                self._deliver([zmq.Frame(item)])
                return
            _, outputs = item
            self._deliver([zmq.Frame(bytes(part)) for part in self._encoder.encode(outputs)])


def _core_proc(vllm_config: Any, executor: Any) -> Any:
    core = EngineCoreProc.__new__(EngineCoreProc)
    core.vllm_config = vllm_config
    core.input_queue, core.output_queue = queue.Queue(), queue.Queue()
    core.aborts_queue = queue.Queue()
    core.engine_index = 0
    core.engines_running = False
    core.shutdown_state = EngineShutdownState.RUNNING
    core.tensor_ipc_receiver = core.mm_receiver_cache = core.batch_queue = None
    core.process_input_queue_block = True
    core.publish_dp_lb_stats = core.enable_fault_tolerance = core.log_stats = False
    core._idle_state_callbacks = []
    core._weight_version = "default"
    core.model_executor = executor
    core.scheduler = _scheduler()
    core.is_pooling_model = False
    core.step_fn = core.step
    failed = (EngineCoreRequestType.EXECUTOR_FAILED, b"")
    executor.register_failure_callback(lambda: core.input_queue.put_nowait(failed))
    return core


def _scheduler() -> Any:
    scheduler = Scheduler.__new__(Scheduler)
    scheduler.requests = {}
    scheduler.running, scheduler.waiting, scheduler.kv_holding_waiting = [], [], []
    scheduler.finished_req_ids, scheduler.prev_step_scheduled_req_ids = set(), set()
    scheduler.num_waiting_for_streaming_input = 0
    scheduler.connector = scheduler.ec_connector = scheduler.aux_output_connector = None
    scheduler._pause_state = PauseState.UNPAUSED
    scheduler.kv_cache_manager = SimpleNamespace(reset_prefix_cache=lambda: True)
    scheduler.encoder_cache_manager = SimpleNamespace(reset=lambda: None)
    return scheduler


class _Input:
    """The client's end of the socket to the core."""

    def __init__(self, core: EngineCoreProc) -> None:
        self._core = core
        self._decoder = MsgpackDecoder()

    def send_multipart(self, message: Any, copy: bool) -> Any:
        """Do what ``process_input_sockets`` does with a message; return what can be awaited."""
        _, kind, *data = message
        request_type = EngineCoreRequestType(bytes(kind))
        self._core.input_queue.put_nowait((request_type, self._decoder.decode(data)))
        sent = asyncio.get_running_loop().create_future()
        sent.set_result(None)
        return sent


class _Output:
    """The client's end of the socket from the core."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._frames: asyncio.Queue[list[zmq.Frame]] = asyncio.Queue()

    def deliver(self, frames: list[zmq.Frame]) -> None:
        """Take a message; called in the core's thread."""
        self._loop.call_soon_threadsafe(self._frames.put_nowait, frames)

    async def recv_multipart(self, copy: bool) -> list[zmq.Frame]:
        """Return the oldest message."""
        return await self._frames.get()


class FrontEnd:
    """vLLM's ``AsyncLLM`` over its client, connected to one core."""

    def __init__(self, vllm_config: Any, executor: Any) -> None:
        output = _Output()
        self.core = Core(vllm_config, executor, output.deliver)
        client = AsyncMPClient.__new__(AsyncMPClient)
        client.vllm_config = vllm_config
        client.encoder, client.decoder = MsgpackEncoder(), MsgpackDecoder(EngineCoreOutputs)
        client.utility_results = {}
        client.outputs_queue = asyncio.Queue()
        client.client_index = 0
        client.core_engine, client.core_engines = ENGINE, [ENGINE]
        client.input_socket = _Input(self.core.proc)
        client.resources = BackgroundResources(ctx=None)
        client.resources.output_socket = output
        client.shutdown = lambda timeout=None: None  # AsyncLLM's finalizer calls it
        self._client = client
        self.llm = _async_llm(vllm_config, client)

    async def lose_worker(self) -> None:
        """Do what vLLM's monitor of worker processes does when one has died, and wait for it."""
        executor = self.core.proc.model_executor
        executor.is_failed = True
        executor.failure_callback()
        self._client._ensure_output_queue_task()
        await self._task_has_ended()

    async def close(self) -> None:
        """End the core's threads and the client's task."""
        await asyncio.to_thread(self.core.close)
        await self._task_has_ended()

    async def _task_has_ended(self) -> None:
        """Wait for the client's task: it ends with the core's last message."""
        task = self._client.resources.output_queue_task
        if task is not None:
            await asyncio.wait([task], timeout=5)
            assert task.done(), "expected the client's task to have ended"


class _Renderer:
    """There is no multi-modal cache to clear, and no process to end."""

    async def clear_mm_cache_async(self) -> None: ...

    def _join_mm_warmup(self) -> None: ...

    def shutdown(self) -> None: ...


def _async_llm(vllm_config: Any, client: AsyncMPClient) -> Any:
    llm = AsyncLLM.__new__(AsyncLLM)
    llm.vllm_config = vllm_config
    llm.engine_core = client
    llm.renderer = _Renderer()
    llm.output_processor = OutputProcessor(None, log_stats=False)
    llm.output_handler = llm.logger_manager = None
    llm.log_requests = False
    return llm
