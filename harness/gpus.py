"""The GPUs of this machine, and which of them each process of a scenario gets.

    python -m harness.gpus # how many; 2 where the driver does not answer

Neither torch nor anything else is imported: noxfile.py asks before an environment is made.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.scenario import Scenario

EXIT_USAGE = 2
VISIBLE = "CUDA_VISIBLE_DEVICES"
_LISTED = re.compile(r"^GPU \d+:", re.MULTILINE)  # and not the MIG devices indented below each
_HIDES_THE_REST = ("", "-1")  # CUDA takes no entry behind one that names no GPU


@dataclass(frozen=True)
class Placement:
    """Which GPUs the processes of one scenario see, as ``CUDA_VISIBLE_DEVICES`` names them.

    Attributes:
        engines: for each engine one GPU a worker; empty where everything runs on the CPU.
        ranks: for each trainer rank its GPU, ``""`` for none; empty likewise.
    """

    engines: tuple[tuple[str, ...], ...] = ()
    ranks: tuple[str, ...] = ()

    def of_engine(self, index: int) -> tuple[str, ...]:
        """Return the GPUs of an engine's workers; none on the CPU."""
        return self.engines[index] if self.engines else ()

    def of_rank(self, rank: int) -> dict[str, str]:
        """Return what a rank's process has in its environment; nothing on the CPU.

        A rank sees its own GPU alone, so that it is the current one in every thread.
        """
        return {VISIBLE: self.ranks[rank], **NCCL_ON_LOOPBACK} if self.ranks else {}


# NCCL's bootstrap would otherwise take an interface that leads out of the machine.
NCCL_ON_LOOPBACK = {"NCCL_SOCKET_IFNAME": "lo"}
ON_CPU = Placement()


def visible_gpus(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them.

    None without ``nvidia-smi``. The driver lists all of the machine's, so an existing
    ``CUDA_VISIBLE_DEVICES`` says which of them.

    Raises:
        UsageError: the driver does not answer, so there may be GPUs that nobody can use.
    """
    num_listed = _num_listed()
    given = environment.get(VISIBLE)
    if given is None or not num_listed:
        return tuple(str(number) for number in range(num_listed))
    entries = (entry.strip() for entry in given.split(","))
    return tuple(takewhile(lambda entry: entry not in _HIDES_THE_REST, entries))


def _num_listed() -> int:
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    listed = subprocess.run([program, "-L"], capture_output=True, check=False, text=True)
    if listed.returncode and "No devices" not in listed.stdout:
        found = (listed.stdout + listed.stderr).strip()
        raise UsageError(
            f"{program} -L: expected the machine's GPUs, found status {listed.returncode}: {found} "
            "Repair the driver, or take nvidia-smi off PATH to run on the CPU."
        )
    return len(_LISTED.findall(listed.stdout))


def gpus_needed(scenario: Scenario) -> int:
    """Return the fewest GPUs that a scenario on real engines runs on."""
    return gpus_wanted(scenario) if scenario.transport == "nccl" else scenario.engines.workers


def gpus_wanted(scenario: Scenario) -> int:
    """Return the GPUs of a scenario on real engines where every worker has its own.

    An NCCL communicator takes one rank a GPU: a GPU for each worker, and one for the sender. CUDA
    IPC is within a GPU: a worker needs a rank beside it.
    """
    engines = scenario.engines
    num_workers = engines.count * engines.workers
    if scenario.transport == "nccl":
        return num_workers + 1
    return max(engines.workers, min(num_workers, scenario.trainer.ranks))


def why_not(scenario: Scenario, num_gpus: int) -> str | None:
    """Return why a scenario on real engines cannot run on so many GPUs; ``None`` where it can."""
    engines, trainer = scenario.engines, scenario.trainer
    if trainer.send_loop == "ours":
        return (
            "expected vLLM's own send loops on a GPU, found trainer.send_loop: ours. "
            "Leave the key out, or run it on the CPU."
        )
    if scenario.transport == "ipc" and engines.workers > trainer.ranks:
        return (
            f"expected a trainer rank beside each of an engine's {engines.workers} workers, since "
            f"CUDA IPC is within a GPU, found {trainer.ranks}. Raise trainer.ranks, or run it on "
            "the CPU."
        )
    needed = gpus_needed(scenario)
    if num_gpus >= needed:
        return None
    for_whom = "one for each worker and one for the sender"
    if scenario.transport == "ipc":
        for_whom = "one for each worker of an engine"
    return (
        f"expected {needed} GPU{'s' if needed > 1 else ''} ({for_whom}), found {num_gpus}. "
        "Take a machine with more, or run it on the CPU."
    )


def place(scenario: Scenario, gpus: Sequence[str]) -> Placement:
    """Return who gets which GPU; everything runs on the CPU where there is none to give.

    NCCL: the workers get the first GPUs, the sender the next, and the ranks that do not send none.
    IPC: rank ``r`` is on the GPU of worker ``r``, counted over all engines. Where ranks or GPUs are
    fewer than workers, engines share GPUs; where ranks are more, ranks do, and vLLM takes the
    handles of the last of them (``ipc_engine.py`` 355-361).

    Args:
        scenario: `why_not` has nothing against it.
        gpus: as ``CUDA_VISIBLE_DEVICES`` names them.
    """
    if not gpus or scenario.engines.kind == "fake":
        return ON_CPU
    engines, num_ranks = scenario.engines, scenario.trainer.ranks
    used = list(gpus)[: gpus_wanted(scenario)]
    if scenario.transport == "nccl":
        sender = used.pop()
        ranks = (sender, *[""] * (num_ranks - 1))
    else:
        ranks = tuple(used[rank % len(used)] for rank in range(num_ranks))
    return Placement(
        engines=tuple(
            tuple(
                used[(index * engines.workers + worker) % len(used)]
                for worker in range(engines.workers)
            )
            for index in range(engines.count)
        ),
        ranks=ranks,
    )


if __name__ == "__main__":
    try:
        print(len(visible_gpus()))
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_USAGE)
