"""The client that the trainer engine talks to: vLLM's four methods, on top of every engine at once.

Source: ``VLLMWeightSyncClient`` in vLLM 0.32, ``distributed/weight_transfer/base.py``.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from resync.engine_control import EngineControl
from resync.errors import ChannelError
from resync.fleet import Fleet
from resync.policy import TransportPolicy


def _nothing(*arguments: object) -> None:
    """The default of the client's hooks."""


class WeightSyncClient:
    """What a trainer engine calls `client`.

    ``start_weight_update`` does nothing: opening the sessions is a step of the push, agreed on
    before any rank enters a gather. ``finish_weight_update`` never carries a version: publishing is
    a step of the push as well.

    Attributes:
        leaves_open: the sessions are not closed by ``finish_weight_update``: others send too.
        draft: whether the session that is open is the draft model's.
        failure: why the first request of this session failed, or ``None``. Where the policy
            latches, later calls of the session do nothing.
        on_init_failed, on_update_failed: called with the failure before it is raised or latched,
            on the thread that made the call.
        on_answered: called with ``update`` or ``finish`` once every engine has answered it, where
            the engines receive what the sender broadcasts.
        on_next_step: called when the sender makes its next request.
    """

    def __init__(self, fleet: Fleet | None, policy: TransportPolicy) -> None:
        self.leaves_open = False
        self.draft = False
        self.failure: Exception | None = None
        self.on_init_failed: Callable[[Exception], None] = _nothing
        self.on_update_failed: Callable[[Exception], None] = _nothing
        self.on_answered: Callable[[str], None] = _nothing
        self.on_next_step: Callable[[], None] = _nothing
        self._fleet = fleet
        self._policy = policy
        self._session = 0
        self._num_updates = 0  # that were made in this session

    @property
    def latches(self) -> bool:
        """Whether it raises nothing from a session, so that the sender keeps to its collectives."""
        return self._policy.latch

    @property
    def fleet(self) -> Fleet:
        """The engines; only the sender has them."""
        assert self._fleet is not None, "only the sender's trainer engine may use the client"
        return self._fleet

    def begin_session(self) -> None:
        """Forget the failure of the previous session, and one of it that comes late."""
        self.failure = None
        self._session += 1
        self._num_updates = 0

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        """Have every engine join the channel; each gets the rank of its own first worker.

        Raises:
            FleetError: an engine refused or did not answer within the init time-out.
        """
        # The hook of the channel that this call belongs to: a thread that was left behind in an
        # earlier opening must not fail the present one.
        on_failed = self.on_init_failed
        offsets = self._rank_offsets(init_info)

        async def join(engine: EngineControl) -> None:
            await engine.init({**init_info, **offsets[engine.index]})

        try:
            self._require_size(init_info)
            self.fleet.each(join, coupled=self._policy.coupled)
        except Exception as error:
            on_failed(error)
            raise

    @property
    def num_workers(self) -> int:
        """Workers of the engines that take part, which size the channel's group; sender only."""
        return sum(engine.num_workers for engine in self.fleet.active)

    def _require_size(self, init_info: Mapping[str, Any]) -> None:
        """Refuse a group that would wait for ever for members that do not come."""
        if "rank_offset" not in init_info or "world_size" not in init_info:
            return
        expected = int(init_info["rank_offset"]) + self.num_workers
        if init_info["world_size"] != expected:
            raise ChannelError(
                f"expected a channel of world_size {expected}, one for each worker of the engines "
                f"that are not quarantined behind the rank_offset, found "
                f"{init_info['world_size']}. Size it by the client's num_workers"
            )

    def _rank_offsets(self, init_info: Mapping[str, Any]) -> dict[int, dict[str, int]]:
        """Return each engine's ``rank_offset``: engines follow each other in the group."""
        if "rank_offset" not in init_info:
            return {engine.index: {} for engine in self.fleet.active}
        offsets, next_rank = {}, int(init_info["rank_offset"])
        for engine in self.fleet.active:
            offsets[engine.index] = {"rank_offset": next_rank}
            next_rank += engine.num_workers
        return offsets

    def start_weight_update(self) -> None:
        """Do nothing: the push has opened the sessions, on every engine, before any gather."""

    def update_weights(self, update_info: Any) -> None:
        """Have every engine receive and load tensors.

        Raises:
            FleetError: an engine failed, and the policy does not latch.
        """
        if self.failure is not None:
            return
        self.on_next_step()
        session = self._session
        self._num_updates += 1
        try:
            payload = json_safe(update_info)

            async def update(engine: EngineControl) -> None:
                await engine.update(payload)

            self.fleet.each(update, coupled=self._policy.coupled)
        except Exception as error:  # a payload that is not JSON too: the latch spares no failure
            if session != self._session:
                # vLLM does not join the thread that calls this after an error: the failure is of
                # an attempt that has ended, and must not drop the channel of the next one.
                raise
            self.on_update_failed(error)
            self._fail(error)
        else:
            self._answered("update", session)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Close every engine's session, unless others send in it too.

        A version, if the trainer engine gave one, is not sent.

        Raises:
            FleetError: an engine failed, and the policy does not latch.
        """
        if self.failure is not None:
            return
        self.on_next_step()
        if self.failure is not None:  # the sender was brought back at this very moment
            self._fail(self.failure)
            return
        session = self._session
        if self.leaves_open:
            self._answered("update", session)  # and the sender synchronises still
            return
        try:
            self.fleet.each(EngineControl.finish)
        except Exception as error:
            self._fail(error)
        else:
            self._answered("finish", session)

    def give_up(self, error: Exception) -> None:
        """The trainer engine raised on the sender while an update may be out.

        Engines may receive what nobody broadcasts any more, and will be found out to be idle or
        stuck; a late answer is of no session.
        """
        if self._fleet is None or self.failure is not None:
            return
        self.failure = error
        self._session += 1
        self.on_update_failed(error)
        for engine in self._fleet.active:
            engine.doubt()

    def require_update(self) -> None:
        """Check, on a rank that sends, that its trainer engine has sent something.

        Raises:
            ChannelError: it made no update, so the engines hold what they held.
        """
        if self._fleet is not None and not self._num_updates:
            raise ChannelError(
                "expected an update of the trainer engine on the rank that sends, found none: the "
                "engines hold what they held. Open it as a sender on this rank"
            )

    def forget_replies(self) -> None:
        """Find out anew how far the engines' replies are behind: other ranks have asked, too."""
        if self._fleet is not None:
            for engine in self._fleet.engines:
                engine.replies.forget()

    def fail_sending(self, error: Exception) -> None:
        """Fail the session for a reason that is no request's, and drop the sender's end."""
        self.failure = error
        self.on_update_failed(error)

    def _answered(self, action: str, session: int) -> None:
        if self._policy.coupled and session == self._session:
            self.on_answered(action)

    def _fail(self, error: Exception) -> None:
        self.failure = error
        if not self._policy.latch:
            raise error


def json_safe(update_info: Any) -> Any:
    """Return an update payload as JSON types.

    CUDA IPC handles are tuples of Python objects; vLLM takes them pickled and base64-encoded in
    ``ipc_handles_pickled``. Handles that are JSON already pass through.

    Source: ``_json_safe_update_info`` in vLLM 0.32, ``distributed/weight_transfer/clients.py``.
    """
    if isinstance(update_info, list):
        return [json_safe(info) for info in update_info]
    handles = update_info.get("ipc_handles")
    first = handles[0] if isinstance(handles, list) and handles else handles
    if not isinstance(first, Mapping) or not any(isinstance(h, tuple) for h in first.values()):
        return update_info
    rest = {key: value for key, value in update_info.items() if key != "ipc_handles"}
    rest["ipc_handles_pickled"] = base64.b64encode(pickle.dumps(handles)).decode("ascii")
    return rest
