"""The lines between the launcher and its processes.

A child and the launcher exchange JSON objects, one a line, over a socket pair: `SocketChannel` is
the child's blocking end, `ChannelProtocol` the launcher's end on its event loop. The launcher and
the zygote exchange frames, which may carry file descriptors: `send_frame` and `receive_frame` are
the zygote's blocking end, `pack_frame` and `FrameSplitter` help the launcher's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Sequence

from harness.contracts import Json

READ_BYTES = 1 << 16
FDS_PER_MESSAGE = 64  # the kernel takes at most 253 (SCM_MAX_FD) in one message
_HEADER = struct.Struct("!II")  # bytes of JSON, number of descriptors that follow


class SocketChannel:
    """A child's line to the launcher. A ``contracts.Channel`` over a connected stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._buffer = bytearray()

    def send(self, message: Json) -> None:
        """Send one message; safe from any thread.

        Raises:
            TypeError: ``message`` is not JSON.
            ConnectionError: the launcher has gone.
        """
        data = json.dumps(message).encode() + b"\n"
        with self._sending:
            self._sock.sendall(data)

    def receive(self) -> Json | None:
        """Return the next message, or ``None`` when the launcher has gone; from one thread only."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            try:
                data = self._sock.recv(READ_BYTES)
            except ConnectionError:  # the launcher closed with messages of ours unread
                return None
            if not data:
                return None
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return json.loads(line)

    def close(self) -> None:
        """Close the line: the other end reads what was sent, then the end."""
        self._sock.close()


class ChannelProtocol(asyncio.Protocol):
    """The launcher's end of one child's channel."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._tail = bytearray()
        self._transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()  # no message comes any more

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if b"\n" not in data:
            self._tail += data
            return
        *lines, tail = (bytes(self._tail) + data).split(b"\n")
        self._tail = bytearray(tail)
        for line in lines:
            self._lines.put_nowait(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self._read_rest()
        self.closed.set()
        self._lines.put_nowait(None)

    def _read_rest(self) -> None:
        """Take what the child said before it closed.

        asyncio does not read on once a write has failed, and a child that says its last word and
        leaves may do so while we write to it.
        """
        assert self._transport is not None
        fd = self._transport.get_extra_info("socket").fileno()
        with contextlib.suppress(OSError):  # it would block: there is nothing; or it was reset
            while fd >= 0 and (data := os.read(fd, READ_BYTES)):
                self.data_received(data)

    def send(self, message: Json) -> None:
        """Send one message. Never waits: what a stopped child does not read is kept in memory.

        Raises:
            ConnectionError: the child has closed the channel, or died.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the process has closed its channel")
        self._transport.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> Json | None:
        """Return the next message, or ``None``, from then on always, once the child closed."""
        line = await self._lines.get()
        if line is None:
            self._lines.put_nowait(None)
            return None
        return json.loads(line)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def pack_frame(message: Json, num_fds: int = 0) -> bytes:
    """Return the bytes of one frame; the descriptors follow it in batches (`batches`)."""
    body = json.dumps(message).encode()
    return _HEADER.pack(len(body), num_fds) + body


def batches(fds: Sequence[int]) -> list[list[int]]:
    """Split descriptors into lists that fit one message each."""
    return [list(fds[k : k + FDS_PER_MESSAGE]) for k in range(0, len(fds), FDS_PER_MESSAGE)]


class FrameSplitter:
    """Cuts a stream of bytes into the messages of its frames; for frames without descriptors."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Json]:
        """Return the messages that ``data`` completes."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _HEADER.size:
            length, _ = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            messages.append(json.loads(bytes(self._buffer[_HEADER.size : end])))
            del self._buffer[:end]
        return messages


def send_frame(sock: socket.socket, message: Json) -> None:
    """Send one frame without descriptors, blocking.

    Raises:
        ConnectionError: the other end has gone.
    """
    sock.sendall(pack_frame(message))


def receive_frame(sock: socket.socket) -> tuple[Json, list[int]]:
    """Return the next frame's message and its descriptors, which the caller owns; blocking.

    Raises:
        EOFError: the other end has gone, perhaps in the middle of a frame.
    """
    length, num_fds = _HEADER.unpack(_receive_exactly(sock, _HEADER.size))
    message = json.loads(_receive_exactly(sock, length))
    fds: list[int] = []
    while len(fds) < num_fds:
        data, received, _, _ = socket.recv_fds(sock, 1, FDS_PER_MESSAGE)
        if not data:
            raise EOFError
        for fd in received:
            os.set_inheritable(fd, False)  # Python 3.11 drops recv_fds's flags
        fds += received
    return message, fds


def _receive_exactly(sock: socket.socket, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        part = sock.recv(min(num_bytes - len(data), READ_BYTES))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
