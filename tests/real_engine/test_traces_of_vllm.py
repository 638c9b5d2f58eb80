"""vLLM's own trainer engines and our send loops do the same, call by call and rank by rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm.distributed.weight_transfer import ipc_engine, nccl_engine

from conformance.trainer import CASES, check, compare
from conformance.trainer.contract import TrainerMaker
from tests.conformance.trainer_engines import Trainer, ours
from vllm_engine import trainer

ALONE = [name for name in CASES if name.endswith(".ok")]


def vllms() -> TrainerMaker:
    """Make vLLM's own trainer engines."""
    return Trainer(trainer.open_channel, trainer.nccl, "StreamCommunicator")


def both_do_the_same(name: str, num_ranks: int, directory: Path) -> None:
    """Run a case on both, and compare them with what is on record and with each other."""
    case = CASES[name]
    found = []
    for maker in (vllms, ours):
        own = directory / maker.__name__
        own.mkdir()
        found.append(check(case, maker, num_ranks=num_ranks, directory=own))
    compare(case, *found, payloads=True)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_both_do_the_same(name: str, num_ranks: int, tmp_path: Path) -> None:
    """Both do what is on record, and their calls carry the same payloads."""
    both_do_the_same(name, num_ranks, tmp_path)


@pytest.mark.parametrize("name", ALONE)
def test_both_do_the_same_on_one_rank(name: str, tmp_path: Path) -> None:
    """So they do without peers."""
    both_do_the_same(name, 1, tmp_path)


# fmt: off
VLLMS_OWN = [
    # ours                   vLLM's                                        what stays vLLM's
    (trainer.nccl.NcclTrainerEngine, nccl_engine.NCCLTrainerWeightTransferEngine,
     ("trainer_init", "_broadcast", "_post_send_sync", "shutdown")),
    (trainer.ipc.IpcTrainerEngine,   ipc_engine.IPCTrainerWeightTransferEngine,
     ("trainer_init", "_send", "_send_packed", "_send_unpacked", "_do_send", "_post_send_sync")),
]
# fmt: on


@pytest.mark.parametrize(("adapted", "original", "names"), VLLMS_OWN)
def test_whose_code_runs(adapted: type, original: type, names: tuple[str, ...]) -> None:
    """What decides the order of a push is vLLM's own code, inherited and not written again."""
    assert issubclass(adapted, original)
    assert [name for name in names if name in vars(adapted)] == []
    assert [name for name in names if name not in vars(original)] == []
