"""A key-value store over a socket: how the members of a process group find each other.

On the data plane it stands where vLLM has torch's TCPStore: the sender binds ``master_port`` and
serves, everyone connects. It is not TCPStore because that one makes reverse DNS look-ups in its
only server thread and stalls for seconds where no resolver answers; nor FileStore, for the
trainer's world, because that one looks every 10 ms. Messages are JSON lines, values base64; nothing
is unpickled. Errors carry TCPStore's words where it has any.
"""

from __future__ import annotations

import base64
import json
import selectors
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store

Address = tuple[str, int] | str  # host and port, or the path of a Unix socket

_RETRY_S = 0.002  # between two attempts to connect to a sender that has not bound its port yet


class RendezvousServer:
    """Serves one store from one thread until `close`.

    Raises:
        OSError: the port is taken (``EADDRINUSE``).
    """

    def __init__(self, address: Address) -> None:
        self._values: dict[str, str] = {}
        self._waiting: dict[str, list[socket.socket]] = {}
        self._buffers: dict[socket.socket, bytearray] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = _new_socket(address)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(address)
            self._listener.listen(128)
        except OSError:
            self._listener.close()
            raise
        self._stop, self._stopped = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stopped, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Free the port; clients that wait for a key raise at once. Idempotent."""
        self._stop.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                ready = key.fileobj
                assert isinstance(ready, socket.socket)
                if ready is self._stopped:
                    self._close_sockets()
                    return
                if ready is self._listener:
                    connection, _ = self._listener.accept()
                    _send_at_once(connection)
                    self._buffers[connection] = bytearray()
                    self._selector.register(connection, selectors.EVENT_READ)
                else:
                    self._read(ready)

    def _close_sockets(self) -> None:
        for open_socket in (*self._buffers, self._listener, self._stopped):
            open_socket.close()
        self._selector.close()

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(65536)
            buffer = self._buffers[connection]
            buffer += data
            *lines, rest = bytes(buffer).split(b"\n")
            buffer[:] = rest
            for line in lines:
                self._handle(connection, json.loads(line))
        except (OSError, ValueError, KeyError, TypeError):
            data = b""  # a client that does not speak our protocol is dropped
        if not data:
            self._selector.unregister(connection)
            del self._buffers[connection]
            for waiters in self._waiting.values():
                with suppress(ValueError):
                    waiters.remove(connection)
            connection.close()

    def _handle(self, connection: socket.socket, request: dict[str, Any]) -> None:
        match request["op"]:
            case "set":
                self._set(request["key"], request["value"])
                _send(connection, {})
            case "get" if request["key"] in self._values:
                _send(connection, {"value": self._values[request["key"]]})
            case "get":
                self._waiting.setdefault(request["key"], []).append(connection)
            case "add":
                old = base64.b64decode(self._values.get(request["key"], "")) or b"0"
                new = int(old) + request["amount"]
                self._set(request["key"], _encode(str(new).encode()))
                _send(connection, {"value": new})
            case "check":
                _send(connection, {"value": all(key in self._values for key in request["keys"])})
            case unknown:
                raise ValueError(f"op: expected set, get, add or check, found {unknown!r}.")

    def _set(self, key: str, value: str) -> None:
        self._values[key] = value
        for waiter in self._waiting.pop(key, []):
            with suppress(OSError):  # it has gone; its own read says so
                _send(waiter, {"value": value})


class RendezvousStore(Store):
    """One rank's connection to the sender's `RendezvousServer`, as torch's process groups want it.

    Every call is bounded by one deadline, ``rendezvous_s`` after the store was made.

    Raises:
        dist.DistNetworkError: nobody listens before the deadline, or the server went away.
        dist.DistStoreError: a key was not set before the deadline.
    """

    def __init__(self, address: Address, *, rendezvous_s: float) -> None:
        super().__init__()
        self._rendezvous_s = rendezvous_s
        self._deadline = time.monotonic() + rendezvous_s
        self._known: dict[str, bytes] = {}  # a key is set once in a rendezvous, and read often
        self._socket = self._connect(address)
        self._replies = self._socket.makefile("rb")

    def _connect(self, address: Address) -> socket.socket:
        while True:
            # Not ``create_connection``: it imports the IDNA codec, 5 ms in a fresh process.
            connection = _new_socket(address)
            connection.settimeout(self._left_s())
            try:
                connection.connect(address)
            except OSError as error:
                connection.close()
                if time.monotonic() + _RETRY_S >= self._deadline:
                    raise dist.DistNetworkError(
                        f"The client socket has timed out after {self._rendezvous_s * 1000:.0f}ms "
                        f"while trying to connect to {_words(address)}."
                    ) from error
                time.sleep(_RETRY_S)
            else:
                _send_at_once(connection)
                return connection

    def close(self) -> None:
        """Leave the store; a process group needs it only while it is being made."""
        self._replies.close()
        self._socket.close()

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._call(key, op="set", key=key, value=_encode(data))

    def get(self, key: str) -> bytes:
        if key not in self._known:
            self._known[key] = base64.b64decode(self._call(key, op="get", key=key)["value"])
        return self._known[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self.get(key)

    def add(self, key: str, value: int) -> int:
        return int(self._call(key, op="add", key=key, amount=value)["value"])

    def check(self, keys: list[str]) -> bool:
        return bool(self._call(",".join(keys), op="check", keys=keys)["value"])

    def timeout(self) -> timedelta:
        return timedelta(seconds=self._rendezvous_s)

    def has_extended_api(self) -> bool:
        return False

    def _call(self, keys: str, /, **request: Any) -> dict[str, Any]:
        try:
            self._socket.settimeout(self._left_s())
            _send(self._socket, request)
            line = self._replies.readline()
        except TimeoutError as error:
            raise dist.DistStoreError(
                f"wait timeout after {self._rendezvous_s * 1000:.0f}ms, keys: /{keys}"
            ) from error
        except OSError:
            line = b""  # reset instead of closed: the server went away all the same
        if not line:
            raise dist.DistNetworkError(
                "Failed to recv, got 0 bytes. Connection was likely closed. "
                "Did the remote server shutdown or crash?"
            )
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _left_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.001)


def _new_socket(address: Address) -> socket.socket:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    return socket.socket(family, socket.SOCK_STREAM)


def _send_at_once(connection: socket.socket) -> None:
    if connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _words(address: Address) -> str:
    return address if isinstance(address, str) else f"({address[0]}, {address[1]})"


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")
