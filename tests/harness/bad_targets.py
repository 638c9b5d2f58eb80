"""Targets that do what no catalogue's control does, for the tests of the running side."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from conformance.known_bad.parts import BareUpdater
from harness.contracts import Json, TargetContext

SERVED_S = 0.3  # enough for the request load to be served a few tokens


class Idle:
    """Says that all went well and does nothing; the others each do one thing wrong on top."""

    def __init__(self, context: TargetContext) -> None:
        self.rank = context.rank
        self.num_pushes = 0

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
