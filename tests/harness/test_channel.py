"""The lines between the launcher and its processes, over real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from harness.channel import (
    ChannelProtocol,
    FrameSplitter,
    SocketChannel,
    batches,
    pack_frame,
    receive_frame,
    send_frame,
)

MESSAGES = [None, 1, "line\nbreak", {"a": [1, {"b": "\u00e9"}]}, "x" * 300_000, []]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connected pair of stream sockets."""
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


def test_messages_arrive_whole_and_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    """Any JSON passes, larger than a socket buffer too."""
    near, far = SocketChannel(pair[0]), SocketChannel(pair[1])
    sender = threading.Thread(target=lambda: [near.send(message) for message in MESSAGES])
    sender.start()
    assert [far.receive() for _ in MESSAGES] == MESSAGES
    sender.join()


def test_threads_may_send_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    """Messages of several threads are not mixed."""
    near, far = SocketChannel(pair[0]), SocketChannel(pair[1])
    senders = [
        threading.Thread(target=lambda k=k: [near.send([k] * 5000) for _ in range(20)])
        for k in range(4)
    ]
    for sender in senders:
        sender.start()
    received = [far.receive() for _ in range(80)]
    for sender in senders:
        sender.join()
    assert sorted(received) == sorted([k] * 5000 for k in range(4) for _ in range(20))


# fmt: off
ENDS = [
    # id         sent before the end   unread  then
    ("clean",    b"",                  b"",    []),
    ("message",  b"1\n",               b"",    [1]),
    ("partial",  b"1\n{",              b"",    [1]),
    ("reset",    b"1\n",               b"2\n", [1]),
]
# fmt: on


@pytest.mark.parametrize(
    ("sent", "unread", "then"), [case[1:] for case in ENDS], ids=[case[0] for case in ENDS]
)
def test_the_end_is_none(
    pair: tuple[socket.socket, socket.socket], sent: bytes, unread: bytes, then: list[int]
) -> None:
    """receive gives what was sent whole, then None, even where the kernel reports a reset."""
    pair[0].sendall(sent)
    pair[1].sendall(unread)
    channel = SocketChannel(pair[1])
    received = [channel.receive() for _ in then]
    pair[0].close()
    assert received == then
    assert channel.receive() is None
    assert channel.receive() is None
    with pytest.raises(ConnectionError):
        channel.send("nobody reads this")


def test_launcher_side(pair: tuple[socket.socket, socket.socket]) -> None:
    """The launcher's end carries the same messages and ends with None for ever."""

    async def talk() -> list[Any]:
        loop = asyncio.get_running_loop()
        _, line = await loop.create_unix_connection(ChannelProtocol, sock=pair[0])
        child = SocketChannel(pair[1])

        def echo() -> None:
            for _ in MESSAGES:
                child.send(child.receive())
            child.close()

        thread = asyncio.create_task(asyncio.to_thread(echo))
        for message in MESSAGES:
            line.send(message)
        received = [await line.receive() for _ in range(len(MESSAGES) + 2)]
        await thread
        with pytest.raises(ConnectionError, match="the process has closed its channel"):
            line.send("late")
        return received

    assert asyncio.run(talk()) == [*MESSAGES, None, None]


def test_last_words_survive_a_failed_write(pair: tuple[socket.socket, socket.socket]) -> None:
    """A child that says its last word and leaves is heard, also if it left before it was asked."""

    async def run() -> list[Any]:
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(ChannelProtocol, sock=pair[0])
        protocol.send("a question that it never reads")
        SocketChannel(pair[1]).send(["its last word", "x" * 100_000])
        pair[1].close()
        protocol.send("another")  # fails before the loop had the chance to read
        received = [await protocol.receive(), await protocol.receive()]
        with pytest.raises(ConnectionError):
            protocol.send("a third")
        return received

    assert asyncio.run(run()) == [["its last word", "x" * 100_000], None]


@pytest.mark.parametrize("num_fds", [0, 1, 64, 65, 192])
def test_frames_carry_descriptors(pair: tuple[socket.socket, socket.socket], num_fds: int) -> None:
    """A frame's descriptors arrive in order, and those of the next frame stay with it."""
    reader, writer = os.pipe()
    frames = [({"k": k, "pad": "x" * 1000}, [reader, *[writer] * (num_fds - 1)]) for k in (1, 2)]

    def send() -> None:
        for message, fds in frames:
            own = fds[:num_fds]
            pair[0].sendall(pack_frame(message, len(own)))
            for batch in batches(own):
                socket.send_fds(pair[0], [b"\0"], batch)

    sender = threading.Thread(target=send)
    sender.start()
    for message, _ in frames:
        received, fds = receive_frame(pair[1])
        assert received == message
        expected = [os.readlink(f"/proc/self/fd/{reader}")] * num_fds
        assert [os.readlink(f"/proc/self/fd/{fd}") for fd in fds] == expected
        assert not any(os.get_inheritable(fd) for fd in fds)
        for fd in fds:
            os.close(fd)
    sender.join()
    os.close(reader)
    os.close(writer)


def test_a_frame_cut_short_is_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    """The other end may die in the middle of a frame."""
    pair[0].sendall(pack_frame({"a": 1})[:-1])
    pair[0].close()
    with pytest.raises(EOFError):
        receive_frame(pair[1])


def test_splitter_takes_any_cut(pair: tuple[socket.socket, socket.socket]) -> None:
    """The messages of a stream do not depend on how it is cut."""
    stream = b"".join(pack_frame(message) for message in ({"a": 1}, [], "b"))
    splitter = FrameSplitter()
    found = [message for byte in stream for message in splitter.feed(bytes([byte]))]
    assert found == [{"a": 1}, [], "b"] == FrameSplitter().feed(stream)


def test_send_frame_to_nobody(pair: tuple[socket.socket, socket.socket]) -> None:
    """The sender of a frame hears that the other end has gone."""
    pair[1].close()
    with pytest.raises(ConnectionError):
        send_frame(pair[0], {})
