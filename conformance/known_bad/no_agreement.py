"""No agreement at all: the rank that sees the failure raises, the others wait for it."""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist

from conformance.known_bad.parts import BareUpdater
from harness.contracts import Json, TargetContext


class NoAgreement(BareUpdater):
    def push(self) -> Mapping[str, Json]:
        self.pause()
        self.send()
        self.weight_version += 1
        self.publish(self.version())
        self.resume()
        if self.context.transport == "ipc":
            dist.barrier()
        return {"attempts": 1}


def build(context: TargetContext) -> NoAgreement:
    return NoAgreement(context)
