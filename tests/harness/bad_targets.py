"""Targets that do what no catalogue's control does, for the tests of the running side."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping
from itertools import repeat

import torch.distributed as dist

from conformance.known_bad.parts import BareUpdater
from harness.contracts import Json, TargetContext

WORK_S = 1.2  # well above the quiet window, and the shortest stall that is told of
SERVED_S = 0.3  # enough for the request load to be served a few tokens


class Idle:
    """Says that all went well and does nothing; the others each do one thing wrong on top."""

    def __init__(self, context: TargetContext) -> None:
        self.rank = context.rank
        self.num_pushes = 0
        self._observe = context.observe

    def connect(self) -> Mapping[str, Json]:
        return {"attempts": 1}

    def push(self) -> Mapping[str, Json]:
        self.num_pushes += 1
        return {"attempts": 1}

    def version(self) -> str:
        return str(self.num_pushes)

    def close(self) -> None:
        pass


class Loops(Idle):
    """Never ends a push, whatever is asked of it."""

    def push(self) -> Mapping[str, Json]:
        while True:
            time.sleep(0.01)


class LeaksALock(Idle):
    """Waits, on one rank, for a lock that nobody will give back."""

    def push(self) -> Mapping[str, Json]:
        if self.rank == 1:
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        dist.barrier()
        return super().push()


class HoldsTheGil(Idle):
    """Runs native code for ever on one rank, and never lets another thread run."""

    def push(self) -> Mapping[str, Json]:
        if self.rank == 1:
            deque(repeat(None), maxlen=0)
        dist.barrier()
        return super().push()


class Stops(Idle):
    """Stops the process of one rank, as a debugger does."""

    def push(self) -> Mapping[str, Json]:
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()
        return super().push()


class IgnoresSigterm(Idle):
    """Never ends a push on one rank, and is deaf to a polite request to end."""

    def push(self) -> Mapping[str, Json]:
        if self.rank == 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(0.01)
        dist.barrier()
        return super().push()


class BlocksInC(Idle):
    """Waits on one rank in native code, for bytes that nobody sends."""

    def push(self) -> Mapping[str, Json]:
        if self.rank == 1:
            os.read(os.pipe()[0], 1)
        dist.barrier()
        return super().push()


class BlocksInCWithTheGil(Idle):
    """The same, in an extension that does not give Python's lock back before it waits."""

    def push(self) -> Mapping[str, Json]:
        if self.rank == 1:
            ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)
        dist.barrier()
        return super().push()


class Computes(Idle):
    """Is at work for a while on one rank, which the others wait for."""

    def push(self) -> Mapping[str, Json]:
        end_s = time.monotonic() + WORK_S
        while self.rank == 1 and time.monotonic() < end_s:
            pass
        self._observe("computed")
        dist.barrier()
        return super().push()


class WaitsABit(Idle):
    """Waits on one rank, for something that does not come, until its own limit."""

    def push(self) -> Mapping[str, Json]:
        if self.rank == 1:
            threading.Event().wait(WORK_S)
        self._observe("waited")
        dist.barrier()
        return super().push()


class SkipsABarrier(Idle):
    """Returns from a push on one rank, while the others wait for it in a barrier."""

    def push(self) -> Mapping[str, Json]:
        if self.rank != 1:
            dist.barrier()
        return super().push()


class Leaves(Idle):
    """Ends the process of one rank in the middle of a push, with the status of success."""

    def push(self) -> Mapping[str, Json]:
        if self.rank == 1:
            print("leaving", flush=True)
            os._exit(0)
        return super().push()


class StaysOpen(Idle):
    """Does not come back from its close on one rank."""

    def close(self) -> None:
        while self.rank == 1:
            time.sleep(0.01)


class PublishesOnly(BareUpdater):
    """Gives every engine the new label, and none the weights."""

    def push(self) -> Mapping[str, Json]:
        self.weight_version += 1
        self.publish(self.version())
        time.sleep(SERVED_S)
        return {"attempts": 1}


def raises(context: TargetContext) -> Idle:
    """Fail to build on one rank."""
    if context.rank == 1:
        raise ValueError("no weights on this rank")
    return Idle(context)


def never_comes(context: TargetContext) -> Idle:
    """Never come back from building on one rank."""
    while context.rank == 1:
        time.sleep(0.01)
    return Idle(context)


not_callable = "a string"
