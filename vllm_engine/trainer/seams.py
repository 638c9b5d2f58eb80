"""Where the harness reaches into vLLM's trainer engines: fault points, and names to replace.

Nothing of torch's is touched, so a vLLM worker forked from the same parent is not either;
installing is left to a rank's own process, after the fork. The channel whose engine is running in a
thread says, through `acting_for`, who is asked for fault points and the journal.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch.distributed as dist

from fakes.send_loops import ChannelSettings
from harness.contracts import Json


class Channel:
    """What one channel gives to the code of vLLM that runs for it."""

    def __init__(self, settings: ChannelSettings) -> None:
        self.settings = settings


class _Acting(threading.local):
    channel: Channel | None = None


_acting = _Acting()


@contextmanager
def acting_for(channel: Channel) -> Iterator[None]:
    """Let vLLM's code run for this channel, in this thread."""
    before, _acting.channel = _acting.channel, channel
    try:
        yield
    finally:
        _acting.channel = before


def acting() -> Channel:
    """Return the channel that vLLM's code is running for, in this thread."""
    assert _acting.channel is not None, "vLLM's code was called outside of acting_for()"
    return _acting.channel


class StandIn(ModuleType):
    """A module with some names replaced."""

    def __init__(self, real: ModuleType, **replaced: Any) -> None:
        super().__init__(real.__name__)
        self._real = real
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _barrier(*args: Any, **options: Any) -> None:
    settings = acting().settings
    settings.injector.reach("rank.barrier")
    settings.record("barrier", phase="begin")
    dist.barrier(*args, **options)
    settings.record("barrier", phase="end")


DISTRIBUTED = StandIn(dist, barrier=_barrier)


class RankPoints:
    """The engines' control plane, with the fault point of the trainer's side before an update.

    Args:
        client: the one that the trainer engine was given.
        settings: of the channel.
    """

    def __init__(self, client: Any, settings: ChannelSettings) -> None:
        self._client = client
        self._settings = settings
        self.init_weight_transfer_engine = client.init_weight_transfer_engine
        self.start_weight_update = client.start_weight_update
        self.finish_weight_update = client.finish_weight_update

    def update_weights(self, update_info: dict[str, Json]) -> None:
        """Reach ``rank.update_call``, in the thread that vLLM calls from, and pass the call on."""
        self._settings.injector.reach("rank.update_call")
        self._client.update_weights(update_info)


def install(module: ModuleType, **names: Any) -> None:
    """Replace names that a module of vLLM's has imported; again changes nothing.

    Raises:
        AttributeError: it does not have such a name, so this is not the vLLM that we know.
    """
    for name, stand_in in names.items():
        if not hasattr(module, name):
            raise AttributeError(
                f"{module.__name__}: expected the name {name!r} of vLLM 0.32, found none. "
                f"Compare vllm_engine/trainer with the installed vLLM."
            )
        setattr(module, name, stand_in)
