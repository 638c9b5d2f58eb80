"""The rendezvous store: what it keeps, and how it fails."""

from __future__ import annotations

import errno
import re
import socket
import threading
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from fakes.data_plane.rendezvous import RendezvousServer, RendezvousStore
from fakes.send_loops.nccl import free_port


@pytest.fixture
def server() -> Iterator[tuple[RendezvousServer, int]]:
    port = free_port()
    server = RendezvousServer(("127.0.0.1", port))
    yield server, port
    server.close()


def client(port: int, rendezvous_s: float = 5.0) -> RendezvousStore:
    return RendezvousStore(("127.0.0.1", port), rendezvous_s=rendezvous_s)


def test_values_travel(server: tuple[RendezvousServer, int]) -> None:
    """What one client sets, adds and checks, another one sees, byte for byte."""
    writer, reader = client(server[1]), client(server[1])
    writer.set("text", "value")
    writer.set("binary", bytes(range(256)))
    assert [writer.add("count", 2), reader.add("count", 3)] == [2, 5]
    assert reader.get("text") == b"value"
    assert reader.get("binary") == bytes(range(256))
    assert reader.get("count") == b"5"
    assert reader.check(["text", "binary"])
    assert not reader.check(["text", "absent"])
    writer.close()
    reader.close()


def test_get_waits_for_set(server: tuple[RendezvousServer, int]) -> None:
    """A get and a wait for a key that is not there yet return once somebody sets it."""
    waiting, setting = client(server[1]), client(server[1])
    found: list[bytes] = []

    def wait_and_get() -> None:
        waiting.wait(["late"])
        found.append(waiting.get("late"))

    thread = threading.Thread(target=wait_and_get)
    thread.start()
    setting.set("late", b"here")
    thread.join(5)
    assert found == [b"here"]


def test_port_taken(server: tuple[RendezvousServer, int]) -> None:
    """A port that somebody listens on is a real EADDRINUSE."""
    with pytest.raises(OSError, match="Address already in use") as caught:
        RendezvousServer(("127.0.0.1", server[1]))
    assert caught.value.errno == errno.EADDRINUSE


def test_close_frees_the_port() -> None:
    """After close the same port can be served again, and closing twice is fine."""
    port = free_port()
    for _ in range(2):
        server = RendezvousServer(("127.0.0.1", port))
        client(port).close()
        server.close()
        server.close()


def test_nobody_listens() -> None:
    """A client gives up at its deadline, in TCPStore's words."""
    port = free_port()
    text = (
        f"The client socket has timed out after 50ms "
        f"while trying to connect to (127.0.0.1, {port})."
    )
    with pytest.raises(dist.DistNetworkError, match=f"^{re.escape(text)}$"):
        client(port, rendezvous_s=0.05)


def test_key_never_set(server: tuple[RendezvousServer, int]) -> None:
    """A key that nobody sets is a time-out that names it."""
    with pytest.raises(dist.DistStoreError, match=r"^wait timeout after 50ms, keys: /absent$"):
        client(server[1], rendezvous_s=0.05).get("absent")


def test_server_goes_away(server: tuple[RendezvousServer, int]) -> None:
    """A client that waits for a key raises at once when the server closes."""
    waiting = client(server[1], rendezvous_s=60)
    caught: list[Exception] = []

    def wait() -> None:
        try:
            waiting.get("absent")
        except dist.DistNetworkError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    server[0].close()
    thread.join(5)
    assert [str(error) for error in caught] == [
        "Failed to recv, got 0 bytes. Connection was likely closed. "
        "Did the remote server shutdown or crash?"
    ]


# fmt: off
GARBAGE = [
    # id               line
    ("not-json",       b"GET / HTTP/1.1\r\n\r\n"),
    ("not-an-object",  b"[1]\n"),
    ("unknown-op",     b'{"op": "delete"}\n'),
    ("missing-key",    b'{"op": "get"}\n'),
]
# fmt: on


@pytest.mark.parametrize("line", [case[1] for case in GARBAGE], ids=[case[0] for case in GARBAGE])
def test_garbage_is_dropped(server: tuple[RendezvousServer, int], line: bytes) -> None:
    """A client that does not speak the protocol is cut off; the others do not notice."""
    with socket.create_connection(("127.0.0.1", server[1])) as stranger:
        stranger.sendall(line)
        assert stranger.recv(100) == b""
    store = client(server[1])
    store.set("key", b"value")
    assert store.get("key") == b"value"
