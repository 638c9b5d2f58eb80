"""The sketch that sends, then all-reduces a flag.

The sender that failed goes straight to the all-reduce; the others are still in a gather that it has
left. This is the first design of the pull request that the project grew from.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist

from conformance.known_bad.parts import BareUpdater
from harness.contracts import Json, TargetContext


class AgreeAfterSend(BareUpdater):
    def push(self) -> Mapping[str, Json]:
        self.pause()
        failure: Exception | None = None
        try:
            self.send()
        except Exception as error:
            failure = error
        flag = torch.tensor([int(failure is None)], dtype=torch.int32)
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        if not flag.item():
            raise RuntimeError(f"the push failed on some rank; here: {failure}")
        self.weight_version += 1
        self.publish(self.version())
        self.resume()
        dist.barrier()
        return {"attempts": 1}


def build(context: TargetContext) -> AgreeAfterSend:
    return AgreeAfterSend(context)
