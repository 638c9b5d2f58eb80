"""Pushes over NCCL: facts 3.1, run on vLLM's ``NCCLTrainerWeightTransferEngine``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from conformance.trainer.contract import Case, Fault, RankTrace

FACTS = "3.1"
ALL = range(5)


def gathers(*indices: int) -> list[str]:
    """Return the lines of gathering some tensors."""
    return [f"gather w{index}" for index in indices]


def sends(index: int, num_bytes: int) -> list[str]:
    """Return the lines of one broadcast; ``index`` is its first tensor."""
    return [f"* rank.broadcast w{index}", f"broadcast {num_bytes}B"]


# Opening: the engine is asked to join in a side thread, while the sender is in the rendezvous.
ASK = ["* rank.bind", "submit", "* rank.rendezvous", "rendezvous"]
OPEN = [*ASK, "result", "join"]
# Sending: the call that lets the workers receive is under way before anything is gathered.
BEGIN = ["metadata", "client.start", "submit", "* rank.update_sent", "peek"]
END = ["result", "leave"]
JOINED = ["client.init"]
UPDATED = [*JOINED, "* rank.update_call", "client.update"]

EACH = {
    count: [line for index in range(count) for line in (*gathers(index), *sends(index, 64))]
    for count in range(6)
}
# A chunk is sent once it is larger than the buffer, of 128 bytes unless a case says otherwise.
PACKED = [*gathers(0, 1, 2), *sends(0, 192), *gathers(3, 4), *sends(3, 128)]

DISAGREES = (
    "raised ValueError: WeightSource metadata() disagrees with iteration at index 2: declared 'x' "
    "torch.float32 (16,), got 'w2' torch.float32 (16,). Both channels must enumerate the same "
    "parameters in the same order."
)
TOO_FEW = (
    "raised ValueError: WeightSource yielded 5 parameters but metadata() declared 6; the worker is "
    "waiting for the rest."
)
TOO_MANY = (
    "raised ValueError: WeightSource yielded more parameters than metadata() declared (4); first "
    "extra is 'w4'."
)


def sender(
    *lines: str, side: Sequence[str] = UPDATED, ended: str = "returned", engine: str = "idle"
) -> RankTrace:
    """Return what the sender does once its channel is open."""
    return RankTrace(main=[*OPEN, *lines], side=side, ended=ended, engine=engine)


def peer(num_gathers: int, ended: str = "returned") -> RankTrace:
    """Return what another rank does: it iterates, and hears nothing of the engines."""
    return RankTrace(main=["metadata", *gathers(*range(num_gathers))], ended=ended)


DONE = peer(5)
LEFT_AT = {index: peer(index + 1, f"blocked in gather w{index}") for index in ALL}


def _case(
    what: str,
    sender: RankTrace,
    peers: RankTrace,
    *,
    packed: bool,
    fault: Fault,
    special: dict[int, RankTrace] | None = None,
) -> Case:
    return Case(
        name=f"{'nccl-packed' if packed else 'nccl'}.{what}",
        facts=FACTS,
        transport="nccl",
        packed=packed,
        fault=fault,
        sender=sender,
        peers=peers,
        special=special or {},
    )


def _refusals(packed: bool) -> Iterator[Case]:
    """Yield calls that the engine refuses, but for an update in the middle of a pass."""
    everything = PACKED if packed else EACH[5]
    yield _case(
        "ok",
        sender(*BEGIN, *everything, *END, "client.finish"),
        DONE,
        packed=packed,
        fault=Fault(),
    )
    yield _case(
        "start-refused",
        sender(*BEGIN[:2], side=JOINED, ended="raised RuntimeError: start refused"),
        LEFT_AT[0],
        packed=packed,
        fault=Fault(refuses="start"),
    )
    yield _case(
        "update-refused-before-the-peek",
        sender(*BEGIN, *END, ended="raised RuntimeError: update refused"),
        LEFT_AT[0],
        packed=packed,
        fault=Fault(refuses="update", when="before the peek"),
    )
    yield _case(
        "update-refused-and-channel-dropped",
        sender(*BEGIN, *everything, *END, ended="raised RuntimeError: update refused"),
        DONE,
        packed=packed,
        fault=Fault(refuses="update", when="in the pass", drops_channel=True),
    )
    yield _case(
        "update-timed-out",
        sender(*BEGIN, *everything, *END, ended="raised TimeoutError: update refused"),
        DONE,
        packed=packed,
        fault=Fault(refuses="update", when="receiving", error=TimeoutError),
    )
    finish = [*BEGIN, *everything, *END, "client.finish"]
    yield _case(
        "finish-refused",
        sender(*finish, ended="raised RuntimeError: finish refused"),
        DONE,
        packed=packed,
        fault=Fault(refuses="finish"),
    )


def _bad_sources(packed: bool) -> Iterator[Case]:
    """Yield gathers that fail, and metadata that disagrees with what is gathered."""
    until_w2 = [*(gathers(0, 1) if packed else EACH[2]), *gathers(2)]
    failed = "raised RuntimeError: gather w2 failed"
    yield _case(
        "gather-fails-on-a-peer",
        sender(*BEGIN, *until_w2, ended="blocked in gather w2", engine="receiving"),
        LEFT_AT[2],
        packed=packed,
        fault=Fault(gather_fails_on=1),
        special={1: peer(3, failed)},
    )
    yield _case(
        "gather-fails-on-the-sender",
        sender(*BEGIN, *until_w2, "leave", ended=failed, engine="receiving"),
        LEFT_AT[2],
        packed=packed,
        fault=Fault(gather_fails_on=0),
    )
    yield _case(
        "metadata-names-another",
        sender(*BEGIN, *until_w2, "leave", ended=DISAGREES, engine="receiving"),
        LEFT_AT[3],
        packed=packed,
        fault=Fault(declares="another name"),
    )
    first_chunk = [*gathers(0, 1, 2), *sends(0, 192), *gathers(3, 4)]
    yield _case(
        "metadata-has-one-more",
        sender(
            *BEGIN,
            *(first_chunk if packed else EACH[5]),
            "leave",
            ended=TOO_FEW,
            engine="receiving",
        ),
        DONE,
        packed=packed,
        fault=Fault(declares="one more"),
    )
    yield _case(
        "metadata-has-one-less",
        sender(
            *BEGIN,
            *(first_chunk if packed else [*EACH[4], *gathers(4)]),
            "leave",
            ended=TOO_MANY,
            # Unpacked, the workers have all that they were told to expect.
            engine="receiving" if packed else "idle",
        ),
        DONE,
        packed=packed,
        fault=Fault(declares="one less"),
    )


def _opening() -> Iterator[Case]:
    """Yield what goes wrong before anything is sent. Packing makes no difference."""
    base = Case(
        name="nccl.init-refused",
        facts=FACTS,
        transport="nccl",
        packed=False,
        fault=Fault(refuses="init"),
        sender=RankTrace(
            main=[*ASK, "join"],
            side=JOINED,
            ended="raised DistStoreError: wait timeout after 300ms, keys: /0/1",
        ),
        peers=LEFT_AT[0],
    )
    yield base
    yield replace(
        base,
        name="nccl.init-refused-after-joining",
        fault=Fault(refuses="init", when="afterwards"),
        sender=RankTrace(main=OPEN, side=JOINED, ended="raised RuntimeError: init refused"),
    )
    yield replace(
        base,
        name="nccl.port-taken",
        fault=Fault(port_taken=True, refuses="init", when="never"),
        sender=RankTrace(
            main=[*ASK, "join"], side=JOINED, ended="blocked in join", engine="joining"
        ),
    )


def _in_flight() -> Iterator[Case]:
    """Yield updates that are refused while broadcasts are under way."""
    base = Case(
        name="nccl.update-refused",
        facts=FACTS,
        transport="nccl",
        packed=False,
        fault=Fault(refuses="update", when="in the pass"),
        sender=sender(*BEGIN, *EACH[5], *END, ended="raised RuntimeError: update refused"),
        peers=DONE,
    )
    yield base  # broadcasts only enqueue, so the sender runs through
    yield replace(
        base,
        name="nccl-packed.update-refused",
        packed=True,
        sender=sender(*BEGIN, *PACKED, ended="blocked in synchronize"),
    )  # at the end, when it waits for its two buffers
    two_chunks = [*gathers(0, 1), *sends(0, 128), *gathers(2, 3), *sends(2, 128)]
    three = replace(
        base,
        name="nccl-packed.update-refused-before-the-last-chunk",
        packed=True,
        buffer_bytes=64,
        sender=sender(*BEGIN, *two_chunks, ended="blocked in synchronize"),
        peers=LEFT_AT[4],
    )
    yield three  # when it wants to use the first buffer again
    yield replace(
        three,
        name="nccl-packed.channel-dropped-before-the-last-chunk",
        fault=Fault(refuses="update", when="in the pass", drops_channel=True),
        sender=sender(
            *BEGIN,
            *two_chunks,
            *gathers(4),
            *sends(4, 64),
            *END,
            ended="raised RuntimeError: update refused",
        ),
        peers=DONE,
    )


def _larger_than_the_buffer() -> Case:
    """Return a push of a tensor larger than the buffer: only a warning."""
    chunks = [*gathers(0, 1, 2), *sends(0, 384), *gathers(3, 4), *sends(3, 128)]
    return Case(
        name="nccl-packed.tensor-too-large",
        facts="3.6",
        transport="nccl",
        packed=True,
        fault=Fault(large=True),
        sender=sender(*BEGIN, *chunks, *END, "client.finish"),
        peers=DONE,
    )


NCCL_CASES = (
    *_refusals(packed=False),
    *_refusals(packed=True),
    *_bad_sources(packed=False),
    *_bad_sources(packed=True),
    *_opening(),
    *_in_flight(),
    _larger_than_the_buffer(),
)
