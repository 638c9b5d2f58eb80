"""What the known-bad targets share: the good module's parts, without what holds them together."""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist

from harness.contracts import Json, TargetContext
from resync import Channel, EngineControl, Fleet, PushTimeouts, ResumableWeightSource
from resync.client import WeightSyncClient
from resync.policy import policy_for

SETTLE_S = 0.5


class BareUpdater:
    """Connects like the good updater, and sends once; each known-bad target drives it its way."""

    def __init__(self, context: TargetContext) -> None:
        self.context = context
        self.weight_version = 0
        self.timeouts = PushTimeouts(
            init_s=context.timeouts.init_s,
            request_s=context.timeouts.request_s,
            settle_s=SETTLE_S,
        )
        self.fleet: Fleet | None = None
        self.channel: Channel | None = None

    def connect(self) -> Mapping[str, Json]:
        """Open the channel once; nothing is agreed on."""
        context = self.context
        if context.rank == 0:
            urls = {engine.index: engine.url for engine in context.engines}
            self.fleet = Fleet(urls, self.timeouts, observe=context.observe)
            self.fleet.each(EngineControl.world_size)
        source = ResumableWeightSource(context.source, observe=context.observe)
        client = WeightSyncClient(self.fleet, policy_for("nccl"))  # raises, on every transport
        self.channel = Channel(
            context.open_channel, client, source, self.timeouts, observe=context.observe
        )
        self.source = source
        self.channel.open()
        dist.barrier()
        return {"attempts": 1}

    def pause(self) -> None:
        """Pause every engine, from rank 0."""
        if self.fleet is not None:
            self.fleet.each(EngineControl.pause)

    def send(self) -> None:
        """Start on every engine and send the weights once."""
        if self.fleet is not None:
            self.fleet.each(EngineControl.start)
        assert self.channel is not None
        self.source.begin_pass()
        self.channel.send()

    def publish(self, version: str) -> None:
        """Set the version on every engine, from rank 0."""
        if self.fleet is None:
            return

        async def publish(engine: EngineControl) -> None:
            await engine.publish(version)

        self.fleet.each(publish)

    def resume(self) -> None:
        """Resume every engine, from rank 0."""
        if self.fleet is not None:
            self.fleet.each(EngineControl.resume)

    def version(self) -> str:
        return str(self.weight_version)

    def close(self) -> None:
        if self.channel is not None:
            self.channel.close()
        if self.fleet is not None:
            self.fleet.close()
