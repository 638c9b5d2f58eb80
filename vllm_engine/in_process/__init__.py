"""vLLM's own code as one engine in this process: no server, no process, no GPU, no download.

A request that fails in a worker of a live server with several workers costs a restart of it; here
it costs nothing, so every rule of ``conformance.engine`` can be checked on vLLM itself. What runs
is vLLM's: the HTTP application with its routes, validation, exception handlers and sanitising,
``AsyncLLM``, ``AsyncMPClient`` and their messages, ``EngineCoreProc``'s busy loop, the
``MultiprocExecutor`` that reads replies, ``WorkerProc``'s loop, ``CPUWorker``, the IPC transfer
engine, the layerwise reload, and the linear, embedding and norm layers with their loaders. No
function of vLLM's is replaced.

What is stood in for, each described where it is:

* `engine`: the constructors' work is done by hand throughout, on objects made by ``__new__``, so
  no constructor of vLLM's runs here but those of layers, configurations, the transfer engine and
  the application. There are no routes of generation; a check that completes needs a live server;
* `core`: ZeroMQ sockets; the scheduler has vLLM's pause state and never a request;
* `workers`: worker processes are threads, and shared-memory rings are queues of the same ten
  slots; ``GPUModelRunner`` is two models; a lost worker process is what its monitor does then;
* `groups`: the tensor-parallel group knows rank and size, and cannot communicate;
* `model`: a model of 12 tensors. By default its layers follow the rules of a GPU and it looks its
  parameters up once per call, as 40 of vLLM's models do; ``cpu_layers`` makes it a Llama on a CPU;
* `transfer`: the trainer's tensors are found by number in place of a CUDA IPC handle.

Several engines can live at once if one thread makes them. Their HTTP metrics are the process's:
each new engine starts the gauge of weight operations afresh.

Importing this package imports vLLM.
"""

from vllm_engine.in_process.engine import SEED, InProcessEngine, make_in_process

__all__ = ["SEED", "InProcessEngine", "make_in_process"]
