"""Publishes the version and resumes without reading it back from any engine."""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist

from conformance.known_bad.parts import BareUpdater
from harness.contracts import Json, TargetContext


class NoVersionCheck(BareUpdater):
    def push(self) -> Mapping[str, Json]:
        self.pause()
        self.send()
        self.weight_version += 1
        self.publish(self.version())
        self.resume()
        dist.barrier()
        return {"attempts": 1}


def build(context: TargetContext) -> NoVersionCheck:
    return NoVersionCheck(context)
