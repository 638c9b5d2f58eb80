"""The client that the trainer engine talks to: vLLM's four methods, on top of every engine at once.

Source: ``VLLMWeightSyncClient`` in vLLM 0.32, ``distributed/weight_transfer/base.py``.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from resync.engine_control import EngineControl
from resync.fleet import Fleet
from resync.policy import TransportPolicy


def _nothing(error: Exception) -> None:
    """The default of the client's hooks."""


class WeightSyncClient:
    """What a trainer engine calls `client`.

    ``start_weight_update`` does nothing: opening the sessions is a step of the push, agreed on
    before any rank enters a gather. ``finish_weight_update`` never carries a version: publishing is
    a step of the push as well.

    Attributes:
        draft: whether the session that is open is the draft model's.
        failure: why the first request of this session failed, or ``None``. Where the policy
            latches, later calls of the session do nothing.
        on_init_failed, on_update_failed: called with the failure before it is raised or latched,
            on the thread that made the call.
    """

    def __init__(self, fleet: Fleet | None, policy: TransportPolicy) -> None:
        self.draft = False
        self.failure: Exception | None = None
        self.on_init_failed: Callable[[Exception], None] = _nothing
        self.on_update_failed: Callable[[Exception], None] = _nothing
        self._fleet = fleet
        self._policy = policy
        self._session = 0

    @property
    def fleet(self) -> Fleet:
        """The engines; only the sender has them."""
        assert self._fleet is not None, "only the sender's trainer engine may use the client"
        return self._fleet

    def begin_session(self) -> None:
        """Forget the failure of the previous session, and one of it that comes late."""
        self.failure = None
        self._session += 1

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
            self.fleet.each(join, coupled=self._policy.coupled)
        except Exception as error:
            on_failed(error)
            raise

    def _rank_offsets(self, init_info: Mapping[str, Any]) -> list[dict[str, int]]:
        """Return, for each engine, its ``rank_offset``: engines follow each other in the group."""
        if "rank_offset" not in init_info:
            return [{} for _ in self.fleet.engines]
        offsets, next_rank = [], int(init_info["rank_offset"])
        for engine in self.fleet.engines:
            offsets.append({"rank_offset": next_rank})
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
        session = self._session
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

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Close every engine's session. A version, if the trainer engine gave one, is not sent.

        Raises:
            FleetError: an engine failed, and the policy does not latch.
        """
        if self.failure is not None:
            return
        try:
            self.fleet.each(EngineControl.finish)
        except Exception as error:
            self._fail(error)

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
