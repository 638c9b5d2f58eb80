"""The data-plane channel: this rank's trainer engine, how it is opened, dropped and rebuilt."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from resync.client import WeightSyncClient
from resync.errors import ChannelError, FleetError, RankMustLeave
from resync.observer import Observer, unobserved
from resync.send_watch import SendWatch
from resync.source import ResumableWeightSource
from resync.timeouts import PushTimeouts

logger = logging.getLogger("resync")


class TrainerEngine(Protocol):
    """vLLM's shape of a trainer-side engine (``TrainerWeightTransferEngine``)."""

    def send_weights(self) -> None:
        """Run one pass of the source and, on the sender, one session of the engines."""

    def shutdown(self) -> None:
        """Drop the channel on this side."""


OpenChannel = Callable[[WeightSyncClient, ResumableWeightSource], TrainerEngine]


@dataclass(frozen=True)
class _Opened:
    trainer: TrainerEngine


@dataclass(frozen=True)
class _Failed:
    error: BaseException
    thread_ended: bool


def _current_device() -> int | None:
    """Return the calling thread's CUDA device; ``None`` where CUDA is not in use."""
    # torch left this function without annotations.
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.current_device() if initialized else None


class Channel:
    """This rank's trainer engine, which is ``None`` until opened and after a failed reopening.

    Attributes:
        watch: bounds the sender's broadcasts.

    Args:
        open_channel: builds a trainer engine; called on every rank, each time on a fresh port.
        client: given to it.
        source: given to it.
        timeouts: the limits.
    """

    def __init__(
        self,
        open_channel: OpenChannel,
        client: WeightSyncClient,
        source: ResumableWeightSource,
        timeouts: PushTimeouts,
        *,
        observe: Observer = unobserved,
    ) -> None:
        self.trainer: TrainerEngine | None = None
        self.broken = False
        self._open_channel = open_channel
        self._client = client
        self._source = source
        self._timeouts = timeouts
        self._observe = observe
        self.watch = SendWatch(
            limit_s=timeouts.request_s,
            settle_s=timeouts.settle_s,
            bring_back=client.fail_sending,
            progress=lambda: source.num_gathered,
            observe=observe,
        )
        client.on_update_failed = self._drop_own_end
        client.on_answered = self.watch.arm
        client.on_next_step = self.watch.disarm

    @property
    def needs_rebuild(self) -> bool:
        """Whether weights can only be sent after another `open`."""
        return self.trainer is None or self.broken

    def open(self) -> None:
        """Close what is open and build a new trainer engine, within the init time-out.

        vLLM's NCCL engine sends the init request from a side thread, runs the rendezvous in the
        calling thread and joins the side thread on every way out, so a refused request or a dead
        peer would keep the caller for as long as the slowest of them takes. The build therefore
        runs in a thread of its own. When the init request has failed, or the time is up, the
        thread gets ``settle_s`` to end and is left behind then, which the error says.

        Raises:
            FleetError: an engine refused to join.
            ChannelError: the trainer's side failed or did not come up in time.
        """
        self.close()
        self._observe("channel.open", phase="begin")
        results: queue.SimpleQueue[_Opened | _Failed] = queue.SimpleQueue()
        abandoned = threading.Event()

        def init_failed(error: Exception) -> None:
            results.put(_Failed(error, thread_ended=False))

        self._client.on_init_failed = init_failed
        device = _current_device()

        def build() -> None:
            try:
                if device is not None:
                    torch.cuda.set_device(device)  # the current device belongs to a thread
                trainer = self._open_channel(self._client, self._source)
            except BaseException as error:
                results.put(_Failed(error, thread_ended=True))
                return
            results.put(_Opened(trainer))
            if abandoned.is_set():
                _shut_down_unclaimed(results)

        thread = threading.Thread(target=build, name="resync-open-channel", daemon=True)
        thread.start()
        try:
            self.trainer = self._opened(results)
        except BaseException:
            abandoned.set()
            _shut_down_unclaimed(results)
            raise
        self.broken = False
        self._observe("channel.open", phase="end")

    def send(self) -> None:
        """Have the trainer engine run one pass and, on the sender, one session of the engines."""
        assert self.trainer is not None, "expected an open channel: open() comes before send()"
        with self.watch.sending():
            self.trainer.send_weights()

    def _opened(self, results: queue.SimpleQueue[_Opened | _Failed]) -> TrainerEngine:
        limit_s = self._timeouts.open_channel_s
        try:
            result = results.get(timeout=limit_s)
        except queue.Empty:
            raise ChannelError(
                f"expected the trainer's end of the channel within {limit_s:g} s, found its thread "
                "still waiting in the rendezvous. The thread cannot be freed; it is left behind. "
                "Check that every engine can reach the trainer's address and port"
            ) from None
        if isinstance(result, _Opened):
            return result.trainer
        own = result.error if result.thread_ended else self._unwound(results)
        if isinstance(own, RankMustLeave):  # metadata() of the source raised in there
            raise own
        if own is None or isinstance(own, FleetError):
            raise result.error
        then = "" if result.thread_ended else f"; and then: {result.error}"
        raise ChannelError(
            f"the trainer's end of the channel: {type(own).__name__}: {own}{then}"
        ) from own

    def _unwound(self, results: queue.SimpleQueue[_Opened | _Failed]) -> BaseException | None:
        """An engine refused: give the thread, which may be in the rendezvous, time to unwind.

        Returns:
            What the thread ended with, if it did: the refusal, or an error of its own before it.
        """
        try:
            result = results.get(timeout=self._timeouts.settle_s)
        except queue.Empty:
            logger.warning(
                "an engine refused to join, and the trainer's end of the channel is still in its "
                "rendezvous after %g s: its thread cannot be freed and is left behind",
                self._timeouts.settle_s,
            )
            return None
        if isinstance(result, _Opened):
            _shut_down(result.trainer)
            return None
        return result.error

    def _drop_own_end(self, error: Exception) -> None:
        """Nobody receives any more: free a broadcast of the sender that is under way.

        After ``destroy()`` of vLLM's communicator, the broadcasts that are left do nothing, so the
        trainer engine runs through its gathers and raises the failed request at the end.
        """
        self.broken = True
        communicator: Any = getattr(self.trainer, "model_update_group", None)
        if communicator is None:
            return
        try:
            self.watch.expect_back()
        finally:  # an observer may strike in there, and the sender is blocked all the same
            _destroy(communicator)

    def close(self) -> None:
        """Shut the trainer engine down, if there is one."""
        trainer, self.trainer = self.trainer, None
        if trainer is not None:
            _shut_down(trainer)


def _destroy(communicator: Any) -> None:
    try:
        communicator.destroy()
    except Exception:
        logger.exception("dropping the sender's end of the channel failed; going on without it")


def _shut_down(trainer: TrainerEngine) -> None:
    """Shut a trainer engine down. What that raises is logged, not raised: the error that made us
    close matters more."""
    try:
        trainer.shutdown()
    except Exception:
        logger.exception("shutting the trainer engine down failed; going on without it")


def _shut_down_unclaimed(results: queue.SimpleQueue[_Opened | _Failed]) -> None:
    """Shut down a trainer engine that came up after its opening was given up.

    Both sides of `Channel.open` call this; whichever takes the engine from the queue owns it.
    """
    with contextlib.suppress(queue.Empty):
        while True:
            result = results.get_nowait()
            if isinstance(result, _Opened):
                _shut_down(result.trainer)
