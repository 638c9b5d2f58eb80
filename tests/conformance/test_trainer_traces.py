"""Our send loops do what vLLM's trainer engines do, and broken ones do not."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conformance.trainer import CASES, check, processes
from fakes.send_loops import ChannelSettings, ipc, nccl
from fakes.send_loops.ipc import IpcTrainerEngine, open_ipc
from fakes.send_loops.nccl import NcclTrainerEngine, open_nccl
from tests.conformance.trainer_engines import Trainer, ours

ALONE = [name for name in CASES if name.endswith(".ok")]


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_ours(name: str, num_ranks: int, tmp_path: Path) -> None:
    """Every rank does, call by call, what was recorded of vLLM's."""
    check(CASES[name], ours, num_ranks=num_ranks, directory=tmp_path)


@pytest.mark.parametrize("name", ALONE)
def test_ours_on_one_rank(name: str, tmp_path: Path) -> None:
    """Without peers there are no collectives of the send loop."""
    check(CASES[name], ours, num_ranks=1, directory=tmp_path)


class _BarrierBeforeFinish(IpcTrainerEngine):
    """The sender frees the peers before the engines are done."""

    def send_weights(self) -> None:
        if self.is_sender:
            self.client.start_weight_update()
        self._send_packed() if self.packed else self._send_unpacked()
        self._barrier()
        if self.is_sender:
            self.client.finish_weight_update()
        self.exporter.release_all()


class _NoBarrierAfterAChunk(IpcTrainerEngine):
    """Peers overwrite their buffer while a worker still reads it."""

    def _send_packed(self) -> None:
        buffer = self.exporter.allocate(self._settings.buffer_bytes)
        for chunk in ipc.ipc_chunks(iter(self.source), buffer.tensor):
            handles = self._all_gather_and_merge_handles([self._for_own_gpus(buffer.handle)])
            self._update(chunk, handles[0], tensor_sizes=chunk.tensor_sizes)


class _KeepsPeersInStep(IpcTrainerEngine):
    """A sender that fails goes to the last barrier all the same: kinder than vLLM's."""

    def send_weights(self) -> None:
        try:
            super().send_weights()
        except RuntimeError:
            self._barrier()
            raise


class _CallsInTheMainThread(NcclTrainerEngine):
    """The engines are asked to receive before anything can be sent to them."""

    def send_weights(self) -> None:
        if not self.is_sender:
            return super().send_weights()
        metadata = self.source.metadata()
        self.client.start_weight_update()
        self._settings.injector.reach("rank.update_sent")
        self._update(
            {
                "names": [meta.name for meta in metadata],
                "dtype_names": ["float32" for _ in metadata],
                "shapes": [list(meta.shape) for meta in metadata],
            }
        )
        self._broadcast(metadata)
        self.client.finish_weight_update()
        return None


class _JoinsTheCall(NcclTrainerEngine):
    """An error on the sender waits for the engines, which wait for the sender."""

    def send_weights(self) -> None:
        class Joining(ThreadPoolExecutor):
            def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
                super().shutdown(wait=True)

        vars(nccl)["ThreadPoolExecutor"] = Joining
        super().send_weights()


class _PeersSkipMetadata(NcclTrainerEngine):
    """For a source whose metadata is a collective, the sender would wait for ever."""

    def send_weights(self) -> None:
        if self.is_sender:
            return super().send_weights()
        for _ in self.source:
            pass
        return None


class _SwallowsTheFailure(NcclTrainerEngine):
    """A refused push looks like one that worked."""

    def send_weights(self) -> None:
        try:
            super().send_weights()
        except RuntimeError:
            return


def broken(kind: type[Any]) -> Callable[[], Trainer]:
    """Return a maker of one of the classes above."""
    module, opener, name = (
        (nccl, open_nccl, "NcclTrainerEngine")
        if issubclass(kind, NcclTrainerEngine)
        else (ipc, open_ipc, "IpcTrainerEngine")
    )

    def open_broken(settings: ChannelSettings, client: Any, source: Any) -> Any:
        setattr(module, name, kind)  # in a forked rank, which does nothing else
        return opener(settings, client, source)

    return lambda: Trainer(open_broken, nccl, "NcclLikeCommunicator")


# fmt: off
CANARIES = [
    # what is broken            a case that rejects it            ranks, and what is shown of it
    (_BarrierBeforeFinish,      "ipc.ok",                         2, "-client.finish"),
    (_BarrierBeforeFinish,      "ipc-packed.finish-refused",      4,
     "-blocked in barrier\n+journal barrier end\n+returned"),
    (_NoBarrierAfterAChunk,     "ipc-packed.ok",                  2, "-* rank.barrier"),
    (_KeepsPeersInStep,         "ipc.update-refused",             2, "-blocked in barrier\n"),
    (_CallsInTheMainThread,     "nccl.ok",                        2, "+blocked in receive"),
    (_JoinsTheCall,             "nccl.gather-fails-on-the-sender", 2, "+blocked in join"),
    (_PeersSkipMetadata,        "nccl-packed.ok",                 4, "-metadata"),
    (_SwallowsTheFailure,       "nccl.update-refused",            2,
     "-raised RuntimeError: update refused\n+returned"),
]
# fmt: on


@pytest.mark.parametrize(
    ("kind", "name", "num_ranks", "shown"),
    CANARIES,
    ids=[f"{kind.__name__[1:]}-{name}" for kind, name, _, _ in CANARIES],
)
def test_canary(kind: type[Any], name: str, num_ranks: int, shown: str, tmp_path: Path) -> None:
    """A send loop that is broken in one way is rejected, and the difference is shown."""
    with pytest.raises(AssertionError) as caught:
        check(CASES[name], broken(kind), num_ranks=num_ranks, directory=tmp_path)
    assert shown in str(caught.value)


def test_the_difference_is_readable(tmp_path: Path) -> None:
    """It names the case, the fact sheet's section and each rank that differs, with the context."""
    with pytest.raises(AssertionError) as caught:
        check(CASES["ipc.ok"], broken(_BarrierBeforeFinish), num_ranks=2, directory=tmp_path)
    assert str(caught.value) == (
        "ipc.ok (facts 3.2), as vLLM's trainer does it:\n"
        "--- rank 0, expected\n"
        "+++ rank 0, found\n"
        "@@ -13,10 +13,10 @@\n"
        " journal barrier end\n"
        " * rank.update_call\n"
        " client.update\n"
        "-client.finish\n"
        " * rank.barrier\n"
        " journal barrier begin\n"
        " barrier\n"
        " journal barrier end\n"
        "+client.finish\n"
        " returned\n"
        " engine idle"
    )


def test_a_rank_that_hangs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing proves that it will not go on, so the check gives up and says how far each came."""
    monkeypatch.setattr(processes, "LIMIT_S", 2.0)

    class Hanging(NcclTrainerEngine):
        def send_weights(self) -> None:
            if not self.is_sender:
                threading.Event().wait()
            super().send_weights()

    with pytest.raises(AssertionError) as caught:
        check(CASES["nccl.ok"], broken(Hanging), num_ranks=2, directory=tmp_path)
    assert str(caught.value) == (
        "expected every rank to end or to be stuck within 2 s, found\n"
        "rank 0: 12 lines so far, its main thread in 'gather w0', its side thread in 'receive'\n"
        "rank 1: 0 lines so far"
    )


def test_a_rank_that_dies(tmp_path: Path) -> None:
    """Its end is not one of vLLM's, and its peers are not waited for."""

    class Dying(IpcTrainerEngine):
        def send_weights(self) -> None:
            if not self.is_sender:
                os._exit(3)
            super().send_weights()

    with pytest.raises(AssertionError, match=r"\n-returned\n\+died\n"):
        check(CASES["ipc.ok"], broken(Dying), num_ranks=2, directory=tmp_path)
