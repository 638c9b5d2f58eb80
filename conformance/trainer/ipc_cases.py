"""Pushes over IPC: facts 3.2, run on vLLM's ``IPCTrainerWeightTransferEngine``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conformance.trainer.contract import Case, Fault, RankTrace

FACTS = "3.2"

BARRIER = ["* rank.barrier", "journal barrier begin", "barrier", "journal barrier end"]
INTO_BARRIER = BARRIER[:3]
HANDLES = ["all_gather int64", "all_gather uint8", *BARRIER]
UPDATE = ["* rank.update_call", "client.update"]
GATHERS = [[f"gather w{index}" for index in range(count)] for count in range(6)]
# A chunk never exceeds the buffer, of 128 bytes: the first tensor of the next one is pulled before.
FIRST = GATHERS[3]
SECOND = ["gather w3", "gather w4"]


def _case(
    what: str,
    sender: Sequence[str],
    peers: Sequence[str],
    *,
    packed: bool,
    fault: Fault | None = None,
    ended: str = "returned",
    peers_ended: str = "returned",
    special: dict[int, RankTrace] | None = None,
    facts: str = FACTS,
) -> Case:
    return Case(
        name=f"{'ipc-packed' if packed else 'ipc'}.{what}",
        facts=facts,
        transport="ipc",
        packed=packed,
        fault=fault or Fault(),
        sender=RankTrace(main=["client.init", *sender], ended=ended),
        peers=RankTrace(main=peers, ended=peers_ended),
        special=special or {},
    )


def _both(packed: bool) -> Iterator[Case]:
    """Yield the cases that are the same until the second gather of tensors is over."""
    yield _case(
        "init-refused",
        [],
        GATHERS[1],
        packed=packed,
        fault=Fault(refuses="init"),
        ended="raised RuntimeError: init refused",
        peers_ended="blocked in gather w0",
    )
    yield _case(
        "start-refused",
        ["client.start"],
        GATHERS[1],
        packed=packed,
        fault=Fault(refuses="start"),
        ended="raised RuntimeError: start refused",
        peers_ended="blocked in gather w0",
    )
    yield _case(
        "gather-fails-on-a-peer",
        ["client.start", *GATHERS[3]],
        GATHERS[3],
        packed=packed,
        fault=Fault(gather_fails_on=1),
        ended="blocked in gather w2",
        peers_ended="blocked in gather w2",
        special={1: RankTrace(main=GATHERS[3], ended="raised RuntimeError: gather w2 failed")},
    )
    yield _case(
        "gather-fails-on-the-sender",
        ["client.start", *GATHERS[3]],
        GATHERS[3],
        packed=packed,
        fault=Fault(gather_fails_on=0),
        ended="raised RuntimeError: gather w2 failed",
        peers_ended="blocked in gather w2",
    )
    tensors = FIRST if packed else GATHERS[5]
    lost = [*tensors, "all_gather int64"]
    yield _case(
        "handles-fail-on-a-peer",
        ["client.start", *lost],
        lost,
        packed=packed,
        fault=Fault(handles_fail_on=1),
        ended="blocked in all_gather int64",
        peers_ended="blocked in all_gather int64",
        special={1: RankTrace(main=lost, ended="raised RuntimeError: all_gather int64 failed")},
    )


def _unpacked() -> Iterator[Case]:
    updated = ["client.start", *GATHERS[5], *HANDLES, *UPDATE]
    shared = [*GATHERS[5], *HANDLES]
    yield _case("ok", [*updated, "client.finish", *BARRIER], [*shared, *BARRIER], packed=False)
    yield _case(
        "update-refused",
        updated,
        [*shared, *INTO_BARRIER],
        packed=False,
        fault=Fault(refuses="update"),
        ended="raised RuntimeError: update refused",
        peers_ended="blocked in barrier",
    )
    yield _case(
        "finish-refused",
        [*updated, "client.finish"],
        [*shared, *INTO_BARRIER],
        packed=False,
        fault=Fault(refuses="finish"),
        ended="raised RuntimeError: finish refused",
        peers_ended="blocked in barrier",
    )


def _packed() -> Iterator[Case]:
    chunk = [*HANDLES, *UPDATE]  # then, on every rank, a barrier before the buffer is used again
    sent = ["client.start", *FIRST, *chunk, *BARRIER, *SECOND, *chunk, *BARRIER, *chunk, *BARRIER]
    shared = [*FIRST, *HANDLES, *BARRIER, *SECOND, *HANDLES, *BARRIER, *HANDLES, *BARRIER]
    yield _case("ok", [*sent, "client.finish", *BARRIER], [*shared, *BARRIER], packed=True)
    yield _case(
        "first-update-refused",
        ["client.start", *FIRST, *chunk],
        [*FIRST, *HANDLES, *INTO_BARRIER],
        packed=True,
        fault=Fault(refuses="update"),
        ended="raised RuntimeError: update refused",
        peers_ended="blocked in barrier",
    )
    yield _case(
        "second-update-refused",
        ["client.start", *FIRST, *chunk, *BARRIER, *SECOND, *chunk],
        [*FIRST, *HANDLES, *BARRIER, *SECOND, *HANDLES, *INTO_BARRIER],
        packed=True,
        fault=Fault(refuses="update", nth=2),
        ended="raised RuntimeError: update refused",
        peers_ended="blocked in barrier",
    )
    yield _case(
        "finish-refused",
        [*sent, "client.finish"],
        [*shared, *INTO_BARRIER],
        packed=True,
        fault=Fault(refuses="finish"),
        ended="raised RuntimeError: finish refused",
        peers_ended="blocked in barrier",
    )
    too_large = (
        "raised ValueError: Tensor 'w2' has size 256 bytes, which exceeds buffer_size_bytes=128. "
        "Increase buffer_size_bytes to at least 256."
    )
    yield _case(
        "tensor-too-large",
        ["client.start", *GATHERS[3]],
        GATHERS[3],
        packed=True,
        fault=Fault(large=True),
        ended=too_large,
        peers_ended=too_large,
    )


IPC_CASES = (*_both(packed=False), *_unpacked(), *_both(packed=True), *_packed())
