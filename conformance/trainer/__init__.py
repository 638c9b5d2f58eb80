"""What a trainer engine must do, call by call and rank by rank, as vLLM's own do it.

`CASES` holds one push each, without a fault or with one, and what every rank does in it. `check`
runs one on real processes in a real gloo group, with a channel to one worker that receives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from conformance.trainer.contract import Case, MakeTrainer, RankTrace
from conformance.trainer.difference import difference
from conformance.trainer.ipc_cases import IPC_CASES
from conformance.trainer.nccl_cases import NCCL_CASES
from conformance.trainer.processes import run

CASES: Mapping[str, Case] = {case.name: case for case in (*NCCL_CASES, *IPC_CASES)}

__all__ = ["CASES", "Case", "MakeTrainer", "RankTrace", "check", "compare", "run"]


def check(case: Case, make: MakeTrainer, *, num_ranks: int, directory: Path) -> list[RankTrace]:
    """Run a case and compare every rank with what it must do.

    Returns:
        What each rank did.

    Raises:
        AssertionError: some rank did something else; shows both, line by line.
    """
    found = run(case, make, num_ranks=num_ranks, directory=directory)
    compare(case, case.expected(num_ranks), found, payloads=False)
    return found


def compare(
    case: Case, expected: Sequence[RankTrace], found: Sequence[RankTrace], *, payloads: bool
) -> None:
    """Compare the ranks of two runs.

    Args:
        case: what was run.
        expected: what each rank must do.
        found: what each rank did.
        payloads: whether to compare what the client's calls carried, too.

    Raises:
        AssertionError: they differ; shows both, line by line.
    """
    text = difference(expected, found, payloads=payloads)
    if text:
        raise AssertionError(
            f"{case.name} (facts {case.facts}), as vLLM's trainer does it:\n{text}"
        )
