"""How a rank's process tells the checking one what it does: JSON lines in a pipe."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.contracts import Json

ENGINE_THREAD = "engine"  # name of a thread that belongs to the engine, not to the trainer


class Notes:
    """Writes what the calling thread does; a `contract.Notebook`.

    A line is written before what it names is done, so whoever reads never believes a rank to be
    further back than one that it has let pass.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def line(self, text: str) -> None:
        self.say("line", text=text)

    @contextmanager
    def inside(self, text: str, *, collective: bool = False) -> Iterator[None]:
        """Note a line and be inside of it; a collective is one of the trainer's default group."""
        self.line(text)
        with self.waiting(text, collective=collective):
            yield

    @contextmanager
    def waiting(self, what: str, *, collective: bool = False) -> Iterator[None]:
        self.say("enter", what=what, collective=collective)
        try:
            yield
        finally:
            self.say("exit")

    def enqueued(self, num_bytes: int) -> None:
        self.line(f"broadcast {num_bytes}B")
        self.say("enqueued", bytes=num_bytes)

    def say(self, kind: str, /, **fields: Json) -> None:
        """Write one message of this thread."""
        thread = threading.current_thread()
        name = "main" if thread is threading.main_thread() else "side"
        if thread.name == ENGINE_THREAD:
            name = ENGINE_THREAD
        message = json.dumps({"kind": kind, "thread": name, **fields})
        os.write(self._pipe, message.encode() + b"\n")  # at once: threads do not mix


class Points:
    """The injector and the recorder of a traced rank: both only note.

    Args:
        notes: where.
        port_taken: whether to listen on the sender's port before it can.
    """

    def __init__(self, notes: Notes, *, port_taken: bool) -> None:
        self._notes = notes
        self._port_taken = port_taken
        self._listener: socket.socket | None = None

    def pick(self, point: str, /, **where: Any) -> None:
        """Strike nothing."""

    def reach(self, point: str, /, **where: Any) -> None:
        """Note the point and the tensor it is about."""
        self._notes.line(" ".join(["*", point, *([where["tensor"]] if "tensor" in where else [])]))
        if point == "rank.bind" and self._port_taken:
            self._listener = socket.create_server(("127.0.0.1", where["port"]))

    def record(self, event: str, /, **fields: Any) -> None:
        """Note what the send loop itself writes; the channel's own events come in any order."""
        if event != "data_plane":
            self._notes.line(f"journal {event} {fields['phase']}")
