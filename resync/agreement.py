"""How all ranks come to one outcome of a step.

Every rank gives its code; an int32 MIN all-reduce decides. Only when it says FAILED do the causes
travel, as JSON bytes. The group is gloo and the flag lies on the CPU, whatever the trainer's own
backend is: an NCCL group cannot reduce CPU tensors, and a CUDA flag would queue behind the very
kernels that hang.

It cannot be atomic: a rank may die right after its own all-reduce succeeded. Hence two rules. A
rank whose agreement fails raises `PeerLost` and touches no engine again; and the sender does
nothing that cannot be taken back before its own agreement succeeded.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

import torch
import torch.distributed as dist

from resync.errors import Cause, PeerLost
from resync.observer import Observer, unobserved


class Code(IntEnum):
    """What a rank says of a step; the smallest wins."""

    FAILED = 0
    RECONNECT = 1  # fine, but the channel must be rebuilt before weights are sent
    DEGRADED = 2  # fine, but for engines that are quarantined
    OK = 3


@dataclass(frozen=True)
class Decision:
    """What all ranks agreed on."""

    code: Code
    causes: tuple[Cause, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the step succeeded on every rank."""
        return self.code is not Code.FAILED


class Agreement:
    """Agreements of all ranks of the default process group, or of one process alone.

    Args:
        timeout_s: how long a rank waits for the others in one agreement, in seconds.
        observe: hears ``agree.<step>`` before and after each agreement.

    Making one is a collective of all ranks where torch.distributed is initialised: the module
    makes a gloo group of its own, so that the trainer may use NCCL only, give its groups other
    time-outs, or destroy them between pushes.

    Source: ``torch.distributed.new_group``.
    """

    def __init__(self, *, timeout_s: float, observe: Observer = unobserved) -> None:
        self._observe = observe
        self._group: dist.ProcessGroup | None = None
        if dist.is_initialized() and dist.get_world_size() > 1:
            timeout = timedelta(seconds=timeout_s)
            self._group = dist.new_group(
                backend="gloo", timeout=timeout, group_desc="resync_agreement"
            )

    def settle(self, step: str, code: Code = Code.OK, causes: Sequence[Cause] = ()) -> Decision:
        """Give this rank's outcome of a step and return the one of all ranks.

        Raises:
            PeerLost: the collective failed or timed out.
        """
        try:
            self._observe(f"agree.{step}", phase="begin", code=int(code))
            decision = self._settle(code, causes)
            self._observe(f"agree.{step}", phase="end", code=int(decision.code))
        except Exception as error:
            raise PeerLost(
                f"agreement on step {step} failed: {error}. A trainer rank has died, left or hung; "
                f"no engine is touched any more. Restart the trainer."
            ) from error
        return decision

    def _settle(self, code: Code, causes: Sequence[Cause]) -> Decision:
        if self._group is None:
            return Decision(code, tuple(causes))
        flag = torch.tensor([code], dtype=torch.int32)
        dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=self._group)
        agreed = Code(int(flag.item()))
        if agreed is not Code.FAILED:
            return Decision(agreed)
        return Decision(agreed, self._exchange(causes))

    def _exchange(self, causes: Sequence[Cause]) -> tuple[Cause, ...]:
        """Give every rank the causes of all ranks, in the order of the ranks."""
        payload = json.dumps([cause.to_json() for cause in causes]).encode()
        longest = torch.tensor([len(payload)], dtype=torch.int64)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=self._group)
        # Blanks after a JSON text belong to it, so nobody needs to know how long each one is.
        padded = bytearray(payload.ljust(int(longest.item())))
        data = torch.frombuffer(padded, dtype=torch.uint8)
        parts = [torch.empty_like(data) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(parts, data, group=self._group)
        return tuple(
            Cause.from_json(fields) for part in parts for fields in json.loads(bytes(part.tolist()))
        )

    def same_everywhere(self, value: int) -> bool:
        """Return whether all ranks gave the same number (at most 62 bits).

        Raises:
            PeerLost: the collective failed or timed out.
        """
        if self._group is None:
            return True
        bounds = torch.tensor([value, -value], dtype=torch.int64)
        try:
            dist.all_reduce(bounds, op=dist.ReduceOp.MIN, group=self._group)
        except Exception as error:
            raise PeerLost(f"comparing what the ranks were given failed: {error}.") from error
        lowest, highest = int(bounds[0].item()), -int(bounds[1].item())
        return lowest == highest

    def close(self) -> None:
        """Destroy the group; local to this rank."""
        group, self._group = self._group, None
        if group is None:
            return
        if dist.is_initialized():
            dist.destroy_process_group(group)
        # The last reference joins gloo's threads, at their next tick; nobody has to wait for that.
        last = [group]
        del group
        threading.Thread(target=last.clear, name="resync-close-group", daemon=True).start()
