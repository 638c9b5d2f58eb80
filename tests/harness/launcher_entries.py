"""Entries of the processes that the launcher's tests start. Imports nothing heavy."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from harness.contracts import Channel


def echo(config: Mapping[str, Any], channel: Channel, sockets: list[socket.socket]) -> None:
    """Say hello with the config, then send back what comes, until the launcher has gone."""
    channel.send({"hello": config, "pid": os.getpid(), "num_sockets": len(sockets)})
    while (message := channel.receive()) is not None:
        channel.send(message)


def leave(config: Mapping[str, Any], channel: Channel, sockets: list[socket.socket]) -> None:
    """End in the way that ``config["how"]`` names."""
    print("leaving")
    match config["how"]:
        case "raise":
            raise RuntimeError("as asked")
        case "exit":
            sys.exit(0)
        case "signal":
            os.kill(os.getpid(), config["signal"])
        case "hard":
            os._exit(config["status"])


def block(config: Mapping[str, Any], channel: Channel, sockets: list[socket.socket]) -> None:
    """Block in C with the GIL held, while another thread waits, after saying so."""
    threading.Thread(target=block_in_thread, daemon=True).start()
    channel.send("blocking")
    libc = ctypes.PyDLL(None)  # unlike CDLL, it keeps the GIL
    while True:  # a signal ends a sleep
        libc.sleep(3600)


def block_in_thread() -> None:
    """Wait for ever."""
    threading.Event().wait()


def descriptors(config: Mapping[str, Any], channel: Channel, sockets: list[socket.socket]) -> None:
    """Send what every open descriptor is, the environment and the scheduling policy."""
    links = {}
    for fd in os.listdir("/proc/self/fd"):
        if os.path.lexists(f"/proc/self/fd/{fd}"):
            links[fd] = os.readlink(f"/proc/self/fd/{fd}")
    channel.send(
        {
            "links": links,
            "sockets": [sock.fileno() for sock in sockets],
            "policy": os.sched_getscheduler(0),
            "group": os.getpgid(0),
            "interface": os.environ["GLOO_SOCKET_IFNAME"],
        }
    )


def serve(config: Mapping[str, Any], channel: Channel, sockets: list[socket.socket]) -> None:
    """Answer every connection of the given listener with a line."""
    while True:
        connection, _ = sockets[0].accept()
        nodelay = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.sendall(b"nodelay" if nodelay else b"delay")
        connection.close()


def parent(config: Mapping[str, Any], channel: Channel, sockets: list[socket.socket]) -> None:
    """Start grandchildren: by exec, in a session of its own, and a daemon without a parent."""
    by_exec = subprocess.Popen(["sleep", "3600"])
    in_session = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            time.sleep(3600)
        os._exit(0)
    daemon = int(os.read(reader, 100))
    os.wait()
    channel.send([by_exec.pid, in_session.pid, daemon])
    if config.get("leave"):
        return
    channel.receive()


def flight_recorder(
    config: Mapping[str, Any], channel: Channel, sockets: list[socket.socket]
) -> None:
    """Run one gloo collective and send torch's Flight Recorder dump."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{config['store']}", rank=config["rank"], world_size=2
    )
    dist.all_reduce(torch.ones(2))
    channel.send(torch._C._distributed_c10d._dump_fr_trace_json().decode())
    channel.receive()
